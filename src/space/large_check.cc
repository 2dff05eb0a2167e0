// Walks over all fields and compares entries, words and hints with each other. For tests, which alone link it.
#include "space/large.h"

#include "space/fields.h"

namespace folio {

namespace {

bool has(const Atomic<uint64_t>& word, unsigned bit) {
  return (word.load(order::relaxed) >> bit & 1) != 0;  // relaxed: nothing is in flight
}

// The field's hints, and those above, promise no less than this.
bool promised(Field& f, Room r, unsigned granules) {
  // Relaxed: as above.
  const unsigned group = f.number / kGroupFields;
  return room_of(f, r) >= granules && f.block->groups.room_of(r, group).load(order::relaxed) >= granules;  // relaxed
}
bool marked_dirty(Field& f, unsigned w) {
  const unsigned group = f.number / kGroupFields;
  return has(f.dirty, w) && has(f.block->groups.mark(Mark::kDirty), group) &&
         has(f.block->group[group].hints.mark(Mark::kDirty), f.number % kGroupFields);
}

// Of a run of granules that are free and there: the hints of the words in which it begins or goes on.
bool rows_promised(Field& f, unsigned start, unsigned end) {
  for (unsigned w = start / 64; w * 64 < end; ++w) {
    const unsigned length = end - (w * 64 > start ? w * 64 : start);
    if (f.ready_rows.get(w) < (length < RowHints::kMost ? length : RowHints::kMost)) return false;
  }
  return true;
}

// Of the words alone: how long the longest runs are, and whether the hints know of what is there.
bool hints_hold(Field& f) {
  unsigned free = 0, ready = 0, most_free = 0, most_ready = 0;
  for (unsigned w = 0; w < f.words(); ++w) {
    const uint64_t taken = f.occupancy(w).load(order::relaxed);    // relaxed: nothing is in flight
    const uint64_t resident = f.resident(w).load(order::relaxed);  // relaxed: as above
    if ((resident & ~taken) != 0 && !marked_dirty(f, w)) return false;
    for (unsigned g = 0; g < 64; ++g) {
      free = (taken >> g & 1) != 0 ? 0 : free + 1;
      const bool is_ready = free != 0 && (resident >> g & 1) != 0;
      if (!is_ready && !rows_promised(f, w * 64 + g - ready, w * 64 + g)) return false;
      ready = is_ready ? ready + 1 : 0;
      if (free > most_free) most_free = free;
      if (ready > most_ready) most_ready = ready;
    }
  }
  if (most_ready > kRunMost) most_ready = kRunMost;
  return rows_promised(f, f.granules - ready, f.granules) && promised(f, Room::kFree, most_free) &&
         promised(f, Room::kReady, most_ready);
}

}  // namespace

bool large_check(const Fields& fields) {
  for (Field* f = first_field(fields); f != nullptr; f = next_field(*f)) {
    if (!f->sealed() || !hints_hold(*f)) return false;
    unsigned end = 0;  // of the object before, or of a chunk that was lent
    bool lent = false;
    uint64_t taken = 0, resident = 0;
    for (unsigned g = 0; g < f->granules; ++g) {
      if (g % 64 == 0) {
        taken = f->occupancy(g / 64).load(order::relaxed);    // relaxed: nothing is in flight
        resident = f->resident(g / 64).load(order::relaxed);  // relaxed: as above
        if (resident != 0 && !has(f->committed, g / 64)) return false;
      }
      const uint32_t entry = f->entry(g).load(order::relaxed);  // relaxed: nothing is in flight
      if (entry != 0) {
        if (g < end || g + granules_in(entry) > f->granules) return false;
        end = g + granules_in(entry);
        lent = (entry & kEntryLent) != 0;
      }
      // What an object has can be used.
      if (g < end && !lent && !has(f->committed, g / 64)) return false;
      const bool is_taken = (taken >> g % 64 & 1) != 0, is_resident = (resident >> g % 64 & 1) != 0;
      if (is_taken != (g < end) || (is_taken && is_resident == lent)) return false;
    }
  }
  return true;
}

}  // namespace folio
