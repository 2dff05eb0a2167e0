// What walks over all fields: for statistics, and in the child of a fork.
#include "space/large.h"

#include "base/bits.h"
#include "space/fields.h"

namespace folio {

LargeStats large_stats(const Fields& fields) {
  LargeStats s{};
  for (Field* f = first_field(fields); f != nullptr; f = next_field(*f)) {
    const uint64_t before = s.taken;
    s.reserved += uint64_t{f->granules} << kGranuleShift;
    for (unsigned w = 0; w < f->words(); ++w) {
      // Relaxed, both: a picture of a moving thing.
      const uint64_t taken = f->occupancy(w).load(order::relaxed), resident = f->resident(w).load(order::relaxed);
      s.taken += uint64_t{popcount(taken)} << kGranuleShift;
      s.resident += uint64_t{popcount(resident)} << kGranuleShift;
      s.dirty += uint64_t{popcount(resident & ~taken)} << kGranuleShift;
    }
    // Where nothing is taken no entry was ever touched, most often.
    for (unsigned g = 0, end = s.taken != before ? f->granules : 0; g < end;) {
      const uint32_t entry = f->entry(g).load(order::relaxed);  // relaxed: as above
      const uint64_t bytes = uint64_t{granules_in(entry)} << kGranuleShift;
      if (is_live(entry)) {
        ++s.objects;
      } else if (entry != 0) {
        s.taken -= bytes < s.taken ? bytes : s.taken;  // it may have come since the words were read
        if (is_parked(entry)) s.parked += bytes;
      }
      g += entry != 0 ? granules_in(entry) : 1;
    }
  }
  return s;
}

void large_give_parked(Fields& fields) {
  for (Field* f = first_field(fields); f != nullptr; f = next_field(*f)) {
    for (unsigned g = 0; g < f->granules;) {
      // Relaxed: the child has one thread. Where nothing is taken no entry was ever touched, most often.
      if (f->occupancy(g / 64).load(order::relaxed) >> g % 64 == 0) {
        g = (g | 63) + 1;
        continue;
      }
      const uint32_t entry = f->entry(g).load(order::relaxed);  // relaxed: as above
      if (is_parked(entry)) large_give(f->base + (size_t{g} << kGranuleShift));
      g += entry != 0 ? granules_in(entry) : 1;
    }
  }
}

}  // namespace folio
