// What the bound leaves to programs that build and free their heap in turns.
#include "core/clock.h"

#include "unit/child.h"
#include "unit/core/heap.h"

using namespace folio;
using namespace folio_test;

namespace {

void turn(size_t size, size_t bytes) {
  std::vector<void*> objects;
  for (size_t sum = 0; sum < bytes; sum += size) {
    objects.push_back(alloc(size));
    *static_cast<char*>(objects.back()) = 1;
  }
  for (void* object : objects) free_object(object);
}

// More than `dirty_floor`, so that something is over it when all is free, and less than may come again. In a child: the
// time of the next tick stays an hour off.
TEST(ClockTurns, WhatWasLiveAMomentAgoStays) {
  SavedOptions saved;
  options.housekeeper = kHousekeeperOff;
  options.decay = 3600000;
  for (const size_t size : {size_t{16}, size_t{100}, size_t{1000}, size_t{3000}, size_t{20000}}) {
    for (const size_t bytes : {9 * kMiB, 12 * kMiB, 24 * kMiB}) {
      EXPECT_EQ(in_child([&] {
                  const PageDelta delta;
                  for (unsigned i = 0; i < 4; ++i) turn(size, bytes);
                  return delta.purged() == 0 ? kPassed : kFailed;
                }),
                kPassed)
          << bytes << " bytes of " << size;
    }
  }
}

}  // namespace
