// Allocates, parks, gives back and resizes large objects: entries, granules and the line at which each starts.
#include "space/large.h"

#include "base/bits.h"
#include "os/os.h"
#include "space/chunk_table.h"
#include "space/large_fields.h"
#include "space/large_huge.h"
#include "space/large_runs.h"
#include "space/pages.h"
#include "space/room.h"

namespace folio {

namespace {

unsigned granule_of(const Field& f, const void* address) {
  return static_cast<unsigned>((static_cast<const char*>(address) - f.base) >> kGranuleShift);
}

unsigned granules_for(size_t bytes) {
  return static_cast<unsigned>(round_up(bytes, kGranuleBytes * granules_a_page()) >> kGranuleShift);
}

// Notes that granules which the caller has taken are in use from now on. Calls visit(first, count) for those that were
// resident. Returns whether there were any.
template <class Visit>
bool note_taken(Field& f, unsigned from, unsigned count, Visit&& visit) {
  bool any = false;
  visit_words(from, count, [&](unsigned w, uint64_t mask, unsigned first) {
    // Relaxed: both change only while their granules are taken, by the taker; the occupancy orders them.
    const uint64_t was = f.resident(w).load(order::relaxed) & mask;
    if (was != mask) {
      f.resident(w).fetch_or(mask, order::relaxed);  // relaxed: see above
      count_resident(bytes_in(popcount(mask & ~was)));
    }
    if (was != 0) {
      any = true;
      count_dirty(-bytes_in(popcount(was)), true);
      visit_runs(was, 64, [&](unsigned at, unsigned length, uint64_t) { visit(first - first % 64 + at, length); });
    }
    if ((f.aged(w).load(order::relaxed) & mask) != 0) f.aged(w).fetch_and(~mask, order::relaxed);  // relaxed: see above
    return true;
  });
  return any;
}

// Whether a limit leaves room for those of the granules that are to become resident.
bool fits(Field& f, unsigned from, unsigned count) {
  return has_room_for_large(size_t{count} << kGranuleShift) ||
         has_room_for_large(size_t{count - count_resident_in(f, from, count)} << kGranuleShift);
}

// What the caller has taken may be used, and comes with huge pages, if that may be and `huge`. Else false, and it is
// given back: there is no room, or the kernel refuses.
bool make_usable(Field& f, unsigned from, unsigned count, bool huge) {
  const bool room = fits(f, from, count);
  if (room && huge) large_prefer_huge(f, from, count);
  if (room && commit(f, from, count)) return true;
  large_refuse_huge(f, from, count);
  large_forget_huge(f, from, count);
  clear(f, from, count);
  return false;
}

// Gives granules of an object back.
void give(Field& f, unsigned from, unsigned count) {
  count_dirty(bytes_in(count), true);
  clear(f, from, count);
}

bool is_hashed(size_t alignment) { return alignment <= 64; }
size_t line_offset(const char* address) {
  return ((reinterpret_cast<uintptr_t>(address) >> kGranuleShift) * 0x9e3779b97f4a7c15u >> 58) * 64;
}

}  // namespace

void* large_alloc(Fields& fields, size_t size, size_t alignment, bool zeroed, bool may_open, LargeNear* near) {
  const unsigned count = large_granules(size, alignment);
  const unsigned page_step = granules_a_page();
  const auto align_step = static_cast<unsigned>(alignment >> kGranuleShift);
  unsigned from;
  const unsigned step = align_step > page_step ? align_step : page_step;
  Field* f = near != nullptr ? near_take(*near, count, step, &from) : nullptr;
  const bool placed = f != nullptr;
  if (!placed) f = take_run(fields, count, step, may_open, &from);
  const bool huge = !zeroed && size >= kLargeHugeLeast;
  if (f != nullptr && !make_usable(*f, from, count, huge)) {
    f = take_committed_run(fields, count, step, &from);
    if (f != nullptr && !make_usable(*f, from, count, false)) f = nullptr;
  }
  if (f == nullptr) return nullptr;
  char* const start = granule_at(*f, from);
  if (near != nullptr) near_note_taken(*near, start, placed);
  const size_t offset = is_hashed(alignment) ? line_offset(start) : 0;
  char* const object = start + offset;
  note_taken(*f, from, count, [&](unsigned first, unsigned n) {
    if (!zeroed) return;
    char* low = granule_at(*f, first);
    char* high = granule_at(*f, first + n);
    if (low < object) low = object;
    if (high > object + size) high = object + size;
    if (low < high) zero_pages(low, static_cast<size_t>(high - low));
  });
  f->entry(from).store(make_entry(count, offset, size),
                       order::relaxed);  // relaxed: who frees it got it from the caller
  arch::store_barrier();  // also where the program passes it on by a relaxed store: CONCURRENCY.md, "Addresses"
  return object;
}

size_t large_good_size(size_t size) { return round_up(size + kLineOffsetMost, kSpareUnit) - kLineOffsetMost; }

LargePlace large_place(const void* address) {
  LargePlace place{};
  auto* f = chunk_code(address) == kCodeLarge ? static_cast<Field*>(descriptor_at(address)) : nullptr;
  if (f == nullptr || !f->sealed()) return place;
  place.field = f;
  for (unsigned g = granule_of(*f, address) + 1; g-- != 0;) {
    const uint32_t entry = f->entry(g).load(order::relaxed);  // relaxed: the caller owns a live object
    if (!is_live(entry)) continue;
    place.granule = g;
    place.base = granule_at(*f, g) + offset_in(entry);
    place.usable = usable_in(entry);
    place.end = granule_at(*f, g + granules_in(entry));
    break;
  }
  return place;
}

unsigned large_park(void* object, bool* seen, unsigned plain_most) {
  auto* f = static_cast<Field*>(descriptor_at(object));
  if (f == nullptr || !f->sealed()) return 0;
  const unsigned g = granule_of(*f, object);
  uint32_t entry = f->entry(g).load(order::relaxed);  // relaxed: the caller owns a live object
  if (!is_live(entry) || granule_at(*f, g) + offset_in(entry) != object) return 0;
  if (seen != nullptr) *seen = (entry & kEntrySeen) != 0;
  if (granules_in(entry) <= plain_most) {
    f->entry(g).store(entry & ~(kEntryLive | kEntrySeen), order::relaxed);  // relaxed: the caller owns it
    return granules_in(entry);
  }
  // Relaxed: decides which of two frees is the second.
  return f->entry(g).compare_exchange(entry, entry & ~(kEntryLive | kEntrySeen), order::relaxed) ? granules_in(entry)
                                                                                                 : 0;
}

bool large_mark_seen(void* object, bool seen) {
  auto* f = static_cast<Field*>(descriptor_at(object));
  Atomic<uint32_t>& entry = f->entry(granule_of(*f, object));
  // Relaxed: the caller owns a live object. Each realloc in place comes here, and nearly no object has the mark: so a
  // load first, and a write only where the mark changes.
  const bool was = (entry.load(order::relaxed) & kEntrySeen) != 0;
  if (seen) entry.fetch_or(kEntrySeen, order::relaxed);
  if (!seen && was) entry.fetch_and(~kEntrySeen, order::relaxed);  // relaxed: as above
  return was;
}

unsigned large_granules(size_t size, size_t alignment) {
  return granules_for(is_hashed(alignment) ? size + kLineOffsetMost : size == 0 ? 1 : size);
}

void* large_unpark(void* parked, size_t size, size_t alignment, bool zeroed) {
  auto* f = static_cast<Field*>(descriptor_at(parked));
  const unsigned g = granule_of(*f, parked);
  char* const start = granule_at(*f, g);
  Atomic<uint32_t>& entry = f->entry(g);
  const uint32_t was = entry.load(order::relaxed);  // relaxed: the caller owns it
  if (__builtin_expect(!is_parked(was), false)) return nullptr;
  const size_t kept = offset_in(was);  // 0 perhaps because it served an aligned request
  const size_t offset = !is_hashed(alignment) ? 0 : kept != 0 ? kept : line_offset(start);
  if (__builtin_expect(offset + size > size_t{granules_in(was)} << kGranuleShift, false)) return nullptr;
  entry.store(make_entry(granules_in(was), offset, size),
              order::relaxed);  // relaxed: who frees it got it from the caller
  arch::store_barrier();        // as in large_alloc
  if (zeroed) zero_pages(start + offset, size);
  return start + offset;
}

bool large_give(void* parked, LargeNear* near) {
  auto* f = static_cast<Field*>(descriptor_at(parked));
  const unsigned g = granule_of(*f, parked);
  uint32_t entry = f->entry(g).load(order::relaxed);  // relaxed: the caller owns it
  // Relaxed: the occupancy orders it. A CAS, as the object may have been parked twice.
  if (!is_parked(entry) || !f->entry(g).compare_exchange(entry, 0, order::relaxed)) return false;
  give(*f, g, granules_in(entry));
  if (near != nullptr) near_note_given(*near, *f, g, granules_in(entry));
  return true;
}

bool large_resize(void* object, size_t size) {
  const LargePlace place = large_place(object);
  if (!place.starts(object)) return false;
  Field& f = *place.field;
  Atomic<uint32_t>& entry = f.entry(place.granule);
  uint32_t now = entry.load(order::relaxed);  // relaxed: the program orders its calls on one object
  if (!is_live(now)) return false;
  const size_t offset = offset_in(now);
  const unsigned had = granules_in(now), wanted = granules_for(size + offset), end = place.granule + had;
  if (wanted > had) {
    if (place.granule + wanted > f.granules || !set(f, end, wanted - had)) return false;
    if (!make_usable(f, end, wanted - had, size >= kLargeHugeLeast)) return false;
    note_taken(f, end, wanted - had, [](unsigned, unsigned) {});
  }
  // Relaxed: as above. A free at the same time, which is misuse, decides: nobody gets granules twice, unless that free
  // parks the object by a store just now (large.h).
  if (!entry.compare_exchange(now, make_entry(wanted, offset, size) | (now & kEntrySeen), order::relaxed)) {
    if (wanted > had) give(f, end, wanted - had);
    return false;
  }
  if (wanted < had) give(f, place.granule + wanted, had - wanted);
  return true;
}

namespace {

constexpr unsigned kLent = kChunkBytes >> kGranuleShift;
static_assert(kLent <= 64 && 64 % kLent == 0);

// The caller has taken the chunk. What it has of pages counts no more, and is in `resident` from then on.
char* lend(Field& f, unsigned from, uint64_t* resident) {
  const uint64_t mask = low_mask(kLent) << from % 64;
  // Relaxed, both: the granules are taken.
  const uint64_t there = f.resident(from / 64).fetch_and(~mask, order::relaxed) & mask;
  f.aged(from / 64).fetch_and(~mask, order::relaxed);
  count_dirty(-bytes_in(popcount(there)), true);
  count_resident(-bytes_in(popcount(there)));
  *resident = there >> from % 64;
  large_forget_huge(f, from, kLent);
  f.entry(from).store(kEntryLent | kLent, order::relaxed);  // relaxed: for statistics
  return granule_at(f, from);
}

}  // namespace

// Out of a field of the process's.
char* lend_chunk() {
  unsigned from;
  Field* f = take_run(process_fields, kLent, kLent, false, &from);
  if (f != nullptr && !commit(*f, from, kLent)) {
    clear(*f, from, kLent);
    f = take_committed_run(process_fields, kLent, kLent, &from);
  }
  if (f == nullptr) return nullptr;
  large_refuse_huge(*f, from, kLent);
  if (!purge_pages(granule_at(*f, from), kChunkBytes)) {
    clear(*f, from, kLent);
    return nullptr;
  }
  uint64_t gone;
  return lend(*f, from, &gone);
}

char* lend_resident_chunk(uint64_t* resident) {
  unsigned from;
  Field* f = take_warm_run(process_fields, kLent, kLent, &from);
  if (f == nullptr) return nullptr;
  large_refuse_huge(*f, from, kLent);
  if (commit(*f, from, kLent)) return lend(*f, from, resident);
  clear(*f, from, kLent);
  return nullptr;
}

// Its entries are the field's again. Looks at every field, as chunks come back seldom.
bool take_back_chunk(char* chunk) {
  // What was lent has a bin's entries, or none: its field is found by the address.
  for (Field* f = first_field(process_fields); f != nullptr; f = next_field(*f)) {
    if (chunk < f->base || chunk >= granule_at(*f, f->granules)) continue;
    set_chunk(window_of(chunk), chunk, f, kCodeLarge);
    const unsigned g = granule_of(*f, chunk);
    const unsigned granules = granules_in(f->entry(g).load(order::relaxed));  // relaxed: the caller owns it
    f->entry(g).store(0, order::relaxed);                                     // relaxed: the occupancy orders it
    clear(*f, g, granules);
    return true;
  }
  return false;
}

}  // namespace folio
