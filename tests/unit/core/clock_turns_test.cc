// What the bound leaves to programs that build and free their heap in turns; and a `decay` that changes meanwhile.
#include "core/clock.h"

#include "policy/retain.h"
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

// Whether the pages of free objects go soon, once `decay` was lowered from an hour. `meanwhile`: what the program does.
template <class Meanwhile>
bool all_goes_once_decay_is_lowered(Meanwhile&& meanwhile) {
  options.decay = 40;
  for (unsigned i = 0; i < 1000 && page_counts.dirty.get() > int64_t{1} << 20; ++i) {
    meanwhile();
    sleep_ms(5);
  }
  return page_counts.dirty.get() <= int64_t{1} << 20;
}

// A tick that is an hour off is due at once then.
TEST(ClockTurns, ALowerDecayCountsAtOnceInTheProgramsCalls) {
  SavedOptions saved;
  options.housekeeper = kHousekeeperOff;
  options.decay = 3600000;
  EXPECT_EQ(in_child([] {
              const auto work = [] {
                for (unsigned i = 0; i < 32; ++i) free_object(alloc(200 * kKiB));
              };
              work();
              sleep_ms(20);
              work();
              turn(3000, 7 * kMiB);
              if (page_counts.dirty.get() < static_cast<int64_t>(5 * kMiB)) return kFailed;
              return all_goes_once_decay_is_lowered(work) ? kPassed : kFailed;
            }),
            kPassed);
}

TEST(ClockTurns, ALowerDecayCountsSoonWithAHousekeeper) {
  SavedOptions saved;
  options.housekeeper = kHousekeeperOn;
  options.decay = 3600000;
  EXPECT_EQ(in_child([] {
              clock_start_housekeeper_if_on();
              for (unsigned i = 0; i < 1000 && !timekeeper_runs(); ++i) sleep_ms(5);
              turn(3000, 7 * kMiB);
              if (!timekeeper_runs() || page_counts.dirty.get() < static_cast<int64_t>(5 * kMiB)) return kFailed;
              return all_goes_once_decay_is_lowered([] {}) ? kPassed : kFailed;
            }),
            kPassed);
}

}  // namespace
