// The index over all fields: raises and lowers room and marks, and finds a field by them.
#include "space/large_index.h"

#include "base/bits.h"
#include "space/metadata.h"

namespace folio {

namespace {

constexpr unsigned kSpare = 64;  // of the places of a block: then the next one is made

FieldGroup& group_of(const Field& f) { return f.block->group[f.number / kGroupFields]; }

FieldBlock* next_block(const FieldBlock& b) {
  return b.next.load(order::acquire);  // [fields] acquire: pairs with make_next
}

FieldBlock* make_next(FieldBlock& b) {
  if (FieldBlock* next = next_block(b)) return next;
  auto* fresh = static_cast<FieldBlock*>(metadata_alloc(sizeof(FieldBlock)));
  if (fresh == nullptr) return nullptr;
  FieldBlock* found = nullptr;
  // [fields] release: zeros only; pairs with next_block. The loser of a race loses 50 KiB of untouched metadata.
  // unseen: the checks come to fields by their own list
  return b.next.compare_exchange(found, fresh, order::release) ? fresh : next_block(b);
}

unsigned places_used(const FieldBlock& b) {
  // [room] seq_cst: a second look sees a field that was entered before its hints were raised; pairs with index_enter
  const unsigned used = b.used.load(order::seq_cst);
  return used < kBlockFields ? used : kBlockFields;
}
unsigned groups_used(const FieldBlock& b) { return (places_used(b) + kGroupFields - 1) / kGroupFields; }
unsigned fields_used(const FieldBlock& b, unsigned group) {
  const unsigned used = places_used(b) - group * kGroupFields;
  return used < kGroupFields ? used : kGroupFields;
}

void raise_to(Atomic<uint16_t>& room, unsigned granules) {
  // [room] seq_cst: after what it is about was changed; pairs with lower_room and with lower_group.
  uint16_t now = room.load(order::seq_cst);
  const auto wanted = static_cast<uint16_t>(granules);
  while (now < wanted && !room.compare_exchange(now, wanted, order::seq_cst)) {  // [room] seq_cst: as above
  }
}

void raise_bit(Atomic<uint64_t>& word, uint64_t bit) {
  // [room] seq_cst: after what it is about was changed; pairs with lower_bit.
  if ((word.load(order::seq_cst) & bit) == 0) word.fetch_or(bit, order::seq_cst);
}

void lower_bit(Atomic<uint64_t>& word, uint64_t bit) {
  word.fetch_and(~bit, order::seq_cst);  // [room] seq_cst: before the second look; pairs with raise_bit
}

// The most room of the group's fields.
unsigned most_room(FieldBlock& b, unsigned g, Room r) {
  unsigned most = 0;
  for (unsigned i = 0, used = fields_used(b, g); i < used; ++i) {
    const unsigned room = b.group[g].hints.room_of(r, i).load(order::seq_cst);  // [room] seq_cst: the second look
    if (room > most) most = room;
  }
  return most;
}

// Lowers a group's room to `granules`, after no field of it was found with more.
void lower_group(FieldBlock& b, unsigned g, Room r, unsigned granules) {
  Atomic<uint16_t>& room = b.groups.room_of(r, g);
  // [room] seq_cst: before the second look; pairs with raise_to.
  room.store(static_cast<uint16_t>(granules), order::seq_cst);
  if (const unsigned most = most_room(b, g, r); most > granules) raise_to(room, most);
}

}  // namespace

bool index_prepare(FieldBlock& first) {
  FieldBlock* b = &first;
  while (FieldBlock* next = next_block(*b)) b = next;
  // Relaxed: a guess, index_enter finds out.
  return b->used.load(order::relaxed) + kSpare < kBlockFields || make_next(*b) != nullptr;
}

bool index_enter(FieldBlock& first, Field& f) {
  for (FieldBlock* b = &first; b != nullptr; b = make_next(*b)) {
    if (b->used.load(order::relaxed) >= kBlockFields) continue;  // relaxed: it only grows
    // [room] seq_cst: before its hints are raised; pairs with places_used.
    const unsigned number = b->used.fetch_add(1, order::seq_cst);
    if (number >= kBlockFields) continue;
    f.block = b;
    f.number = number;
    // Relaxed: who finds it has seen a hint of it, which is raised after this.
    group_of(f).field[number % kGroupFields].store(&f, order::relaxed);
    return true;
  }
  return false;
}

unsigned room_of(Field& f, Room r) {
  // Relaxed: an estimate. If it is too low, the caller takes another field; if too high, it searches in vain, or raises
  // the hint too far.
  return group_of(f).hints.room_of(r, f.number % kGroupFields).load(order::relaxed);
}

void raise_room(Field& f, Room r, unsigned granules) {
  raise_to(group_of(f).hints.room_of(r, f.number % kGroupFields), granules);
  raise_to(f.block->groups.room_of(r, f.number / kGroupFields), granules);
}

void lower_room(Field& f, Room r, unsigned granules) {
  // [room] seq_cst: before the caller's second look; pairs with raise_to.
  group_of(f).hints.room_of(r, f.number % kGroupFields).store(static_cast<uint16_t>(granules), order::seq_cst);
}

void raise_mark(Field& f, Mark m) {
  raise_bit(group_of(f).hints.mark(m), uint64_t{1} << f.number % kGroupFields);
  raise_bit(f.block->groups.mark(m), uint64_t{1} << f.number / kGroupFields);
}

void lower_mark(Field& f, Mark m) { lower_bit(group_of(f).hints.mark(m), uint64_t{1} << f.number % kGroupFields); }

void age_marks(FieldBlock& first) {
  for (FieldBlock* b = &first; b != nullptr; b = next_block(*b)) {
    // Relaxed, what is: what this misses, or a purge just then, has its turn at the next tick.
    for (uint64_t groups = b->groups.mark(Mark::kDirty).load(order::relaxed); groups != 0; groups &= groups - 1) {
      FieldHints& hints = b->group[lowest_bit(groups)].hints;
      // [room] acquire: a field comes with its mark; pairs with raise_bit. unseen: that takes one which is opened,
      // given to, aged and purged at once
      const uint64_t dirty = hints.mark(Mark::kDirty).load(order::acquire);
      // relaxed: see above
      if ((dirty & ~hints.mark(Mark::kAged).load(order::relaxed)) != 0) {
        // [room] release: as above; pairs with find_marked. unseen: as above
        hints.mark(Mark::kAged).fetch_or(dirty, order::release);
      }
      if (dirty != 0) raise_bit(b->groups.mark(Mark::kAged), groups & -groups);
    }
  }
}

Field* find_room(Room r, unsigned granules, FieldPlace* at) {
  for (; at->block != nullptr; at->block = next_block(*at->block), at->number = 0) {
    FieldBlock& b = *at->block;
    for (unsigned g = at->number / kGroupFields, groups = groups_used(b); g < groups; ++g) {
      const unsigned first = at->number > g * kGroupFields ? at->number % kGroupFields : 0;
      if (b.groups.room_of(r, g).load(order::relaxed) < granules) continue;  // relaxed: what a search misses stays so
      unsigned most = 0;
      for (unsigned i = first, used = fields_used(b, g); i < used; ++i) {
        // [room] acquire: the field and its header came before; pairs with raise_to.
        const unsigned room = b.group[g].hints.room_of(r, i).load(order::acquire);
        if (room > most) most = room;
        if (room < granules) continue;
        at->number = g * kGroupFields + i + 1;
        return b.group[g].field[i].load(order::relaxed);  // relaxed: it came with its room
      }
      if (first == 0) lower_group(b, g, r, most);
    }
  }
  return nullptr;
}

Field* find_marked(Mark m, FieldPlace* at) {
  for (; at->block != nullptr; at->block = next_block(*at->block), at->number = 0) {
    FieldBlock& b = *at->block;
    while (at->number < kBlockFields) {
      const unsigned from = at->number / kGroupFields;
      const uint64_t groups = b.groups.mark(m).load(order::relaxed) & ~low_mask(from);  // relaxed: as in find_room
      if (groups == 0) break;
      const unsigned g = lowest_bit(groups), first = g == from ? at->number % kGroupFields : 0;
      Atomic<uint64_t>& word = b.group[g].hints.mark(m);
      // [room] acquire: as in find_room; pairs with raise_bit.
      const uint64_t all = word.load(order::acquire), marked = all & ~low_mask(first);
      if (marked != 0) {
        const unsigned i = lowest_bit(marked);
        at->number = g * kGroupFields + i + 1;
        return b.group[g].field[i].load(order::relaxed);  // relaxed: it came with its mark
      }
      if (all == 0) {
        lower_bit(b.groups.mark(m), uint64_t{1} << g);
        // [room] seq_cst: the second look; pairs with raise_bit.
        if (word.load(order::seq_cst) != 0) raise_bit(b.groups.mark(m), uint64_t{1} << g);
      }
      at->number = (g + 1) * kGroupFields;
    }
  }
  return nullptr;
}

}  // namespace folio
