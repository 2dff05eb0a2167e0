// The parked large objects (space/large.h) of one CPU cache, or of one thread, in a ring of 64 places. The hand points
// behind the newest object; the first one from the hand on is about the oldest.
//
// Who may touch it: whoever is in the CPU cache's section; the thread, and in a fork's child, where that thread has
// vanished, who finds it. So `used` is written last where an object comes, and first where one goes.
#pragma once

#include <stdint.h>

#include "base/bits.h"
#include "space/large.h"

namespace folio {

struct LargeList {
  static constexpr unsigned kMost = 64;  // places
  // Of an object: 256 KiB, and where in the first granule it starts (1,500 stacks of 256 KiB, replaced by turns, took
  // 2,390 instructions a malloc and free with 16). With 64 large buffers took an eighth more memory.
  static constexpr unsigned kGranulesMost = 17;
  uint64_t used;
  uint64_t of[kGranulesMost + 1];  // which places hold an object of that many granules
  void* object[kMost];
  uint8_t granules[kMost];
  uint64_t bytes, budget;
  bool wanted;    // a thread's: one of its mallocs has looked here since an object went for room
  uint32_t kept;  // objects kept so far, for kBudgetEvery
  uint16_t hand;
  uint16_t idle;  // trims since it was last used

  // Of the places in a mask, not 0: the first one from the hand on, and the last one before the hand.
  unsigned first_of(uint64_t places) const { return (lowest_bit(rotated_right(places, hand)) + hand) % kMost; }
  unsigned last_of(uint64_t places) const { return (highest_bit(rotated_right(places, hand)) + hand) % kMost; }

  // Keeps an object of `n` granules. Some place must be free.
  void keep(void* parked, unsigned n) {
    const unsigned place = first_of(~used);
    hand = static_cast<uint16_t>((place + 1) % kMost);
    object[place] = parked;
    granules[place] = static_cast<uint8_t>(n);
    of[n] |= uint64_t{1} << place;
    asm volatile("" : : : "memory");  // see above
    used |= uint64_t{1} << place;
    bytes += uint64_t{n} << kGranuleShift;
    idle = 0;
  }
  void* remove(unsigned place) {
    used &= ~(uint64_t{1} << place);
    asm volatile("" : : : "memory");  // see above
    of[granules[place]] &= ~(uint64_t{1} << place);
    bytes -= uint64_t{granules[place]} << kGranuleShift;
    return object[place];
  }
  // *n: how many granules it has.
  void* remove_oldest(unsigned* n) {
    const unsigned place = first_of(used);
    *n = granules[place];
    return remove(place);
  }
  void* remove_oldest() {
    unsigned n;
    return remove_oldest(&n);
  }
  // Takes out the newest of the smallest objects of n to n + n / 4 granules; null if there is none. (With n / 8, of the
  // mallocs of threads that replace 300 objects of up to 200 KB each 10.9 % go to the field in place of 8.0, and they
  // take 1.1 times as long. If all pages of objects of 33 to 256 KB are touched, n / 4 costs 0.4 to 2.6 % of memory.)
  void* find(unsigned n) {
    for (unsigned has = n; has <= kGranulesMost && has - n <= n / 4; ++has) {
      if (of[has] == 0) continue;
      const unsigned place = last_of(of[has]);
      if ((place + 1) % kMost == hand) hand = static_cast<uint16_t>(place);
      idle = 0;
      return remove(place);
    }
    return nullptr;
  }

  // The budget of one of `caches` CPU caches.
  static uint64_t budget_of_one(uint64_t least, unsigned caches);
  // The budget is computed anew for one object in so many, as it reads a counter that all threads write. (Computed for
  // each object, two threads that replace 300 objects of up to 200 KB each were 5 % slower.)
  static constexpr unsigned kBudgetEvery = 8;
};

// Gives a parked object back to its field; reports one that is not parked. `near`: as for large_give.
void give_parked(void* parked, LargeNear* near = nullptr);

// Objects taken out of a list inside the section, to be given back outside.
struct LargeGone {
  void* object[LargeList::kMost];
  unsigned count = 0;
  void give() const {
    for (unsigned i = 0; i < count; ++i) give_parked(object[i]);
  }
};

}  // namespace folio
