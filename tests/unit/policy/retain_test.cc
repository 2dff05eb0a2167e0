#include "policy/retain.h"

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr auto kSigned = static_cast<int64_t>(kMiB);

// Makes the counts what a test wants them to be, and puts them back.
class Counts {
 public:
  Counts(int64_t live, int64_t dirty, bool large) : live_(live), dirty_(dirty), large_(large) { add(1); }
  ~Counts() { add(-1); }
  Counts(const Counts&) = delete;
  Counts& operator=(const Counts&) = delete;

 private:
  void add(int sign) const {
    count_resident(sign * (live_ + dirty_));
    count_dirty(sign * dirty_, large_);
  }
  int64_t live_, dirty_;
  bool large_;
};

size_t excess(int64_t live, int64_t dirty, bool large = false) {
  const Counts counts(live * kSigned, dirty * kSigned, large);
  forget_recent_live();
  return dirty_excess() / kMiB;
}

TEST(Retain, NothingIsDirtyAtFirst) {
  EXPECT_EQ(page_counts.resident.get(), 0);
  EXPECT_EQ(page_counts.dirty.get(), 0);
  EXPECT_EQ(dirty_excess(), 0u);
}

TEST(Retain, DirtyMemoryIsToleratedUpToTheFloorOrAQuarterOfWhatIsLive) {
  const SavedOptions saved;
  options.dirty_floor = 32;
  EXPECT_EQ(excess(0, 0), 0u);
  EXPECT_EQ(excess(0, 32), 0u);
  EXPECT_EQ(excess(0, 33), 1u);
  EXPECT_EQ(excess(128, 33), 1u);
  EXPECT_EQ(excess(400, 99), 0u);
  EXPECT_EQ(excess(400, 100), 0u);
  EXPECT_EQ(excess(400, 101), 1u);
  EXPECT_EQ(excess(0, 5000), 4968u);
  options.dirty_floor = 0;
  EXPECT_EQ(excess(0, 1), 1u);
  EXPECT_EQ(excess(4, 2), 1u);
  EXPECT_EQ(excess(4, 1), 0u);
}

TEST(Retain, OfLargeObjectsTwiceWhatIsLiveIsTolerated) {
  const SavedOptions saved;
  options.dirty_floor = 16;
  EXPECT_EQ(excess(0, 17, true), 1u);
  EXPECT_EQ(excess(10, 36, true), 0u);
  EXPECT_EQ(excess(10, 37, true), 1u);
  EXPECT_EQ(excess(60, 76, true), 0u);
  EXPECT_EQ(excess(60, 80, true), 0u);
  EXPECT_EQ(excess(60, 81, true), 1u);
  EXPECT_EQ(excess(1000, 64 + 250, true), 0u);
  EXPECT_EQ(excess(1000, 64 + 251, true), 1u);
  page_counts.huge_live.add(8 * kMiB);
  EXPECT_EQ(excess(0, 32, true), 0u) << "twice what is live of huge objects";
  EXPECT_EQ(excess(0, 33, true), 1u);
  EXPECT_EQ(excess(0, 17), 1u) << "not for objects of bins";
  page_counts.huge_live.add(392 * kMiB);
  EXPECT_EQ(excess(0, 16 + 64, true), 0u);
  EXPECT_EQ(excess(0, 16 + 65, true), 1u);
  // A quarter more, as far as it was live since the last tick.
  const auto excess_after = [](int64_t freed, int64_t dirty) {
    forget_recent_live();
    page_counts.huge_live.add(freed * kMiB);
    {
      const Counts looked(0, 17 * kSigned, true);  // above the floor
      EXPECT_EQ(dirty_excess(), 0u);
    }
    page_counts.huge_live.sub(freed * kMiB);
    const Counts left(0, dirty * kSigned, true);
    return dirty_excess() / kMiB;
  };
  EXPECT_EQ(excess_after(90, 16 + 90), 0u);
  EXPECT_EQ(excess_after(90, 16 + 91), 1u);
  EXPECT_EQ(excess_after(500, 16 + 64 + 100), 0u);
  EXPECT_EQ(excess_after(500, 16 + 64 + 101), 1u);
  page_counts.huge_live.add(1600 * kMiB);
  EXPECT_EQ(excess_after(500, 16 + 64 + 256), 0u) << "four times kTolerated";
  EXPECT_EQ(excess_after(500, 16 + 64 + 257), 1u);
  page_counts.huge_live.sub(2000 * kMiB);
  forget_recent_live();
  EXPECT_EQ(excess(0, 17, true), 1u);
}

TEST(Retain, OfLargeObjectsWhatWasLiveSinceTheLastTickIsTolerated) {
  const SavedOptions saved;
  options.dirty_floor = 16;
  {
    const Counts live(50 * kSigned, 17 * kSigned, true);  // above the floor: it is looked at
    EXPECT_EQ(dirty_excess(), 0u);
  }
  {
    const Counts freed(0, 50 * kSigned, true);
    EXPECT_EQ(dirty_excess(), 0u) << "all that was live";
  }
  {
    const Counts more(0, 67 * kSigned, true);
    EXPECT_EQ(dirty_excess() / kMiB, 1u) << "and a floor more";
    forget_recent_live();
    EXPECT_EQ(dirty_excess() / kMiB, 51u) << "a tick later nothing but the floor";
  }
  {
    const Counts live(200 * kSigned, 17 * kSigned, true);
    EXPECT_EQ(dirty_excess(), 0u);
  }
  const Counts freed(0, 200 * kSigned, true);
  EXPECT_EQ(dirty_excess() / kMiB, 200u - 64 - 16) << "no more than kTolerated";
  forget_recent_live();
}

TEST(Retain, OfLargeObjectsAQuarterMoreThanWasLiveIsToleratedWhileSomeStillAre) {
  const SavedOptions saved;
  options.dirty_floor = 16;
  const auto excess_after_40 = [](int64_t live, int64_t dirty) {
    forget_recent_live();
    {
      const Counts most(40 * kSigned, 17 * kSigned, true);
      EXPECT_EQ(dirty_excess(), 0u);
    }
    const Counts left(live * kSigned, dirty * kSigned, true);
    return dirty_excess() / kMiB;
  };
  EXPECT_EQ(excess_after_40(12, 16 + 38), 0u) << "50 with what is live";
  EXPECT_EQ(excess_after_40(12, 16 + 39), 1u);
  EXPECT_EQ(excess_after_40(10, 16 + 40), 0u);
  EXPECT_EQ(excess_after_40(10, 16 + 41), 1u);
  EXPECT_EQ(excess_after_40(1, 16 + 40), 0u) << "no more than was live";
  EXPECT_EQ(excess_after_40(1, 16 + 41), 1u);
  EXPECT_EQ(excess_after_40(20, 16 + 40), 0u) << "twice what is live is more";
  EXPECT_EQ(excess_after_40(20, 16 + 41), 1u);
  forget_recent_live();
}

TEST(Retain, WhatWasLiveSinceTheLastTickIsToleratedAndMoreIfItWasPurgedInVain) {
  const SavedOptions saved;
  options.dirty_floor = 16;
  forget_recent_live();
  const auto left = [](int64_t live, int64_t dirty) {
    const Counts counts(live * kSigned, dirty * kSigned, false);
    return dirty_excess() / kMiB;
  };
  const auto grows_to = [&](int64_t live) { EXPECT_EQ(left(live, 33), live < 68 ? 33u - 16 : 0u); };  // above any floor
  grows_to(30);
  EXPECT_EQ(left(0, 30 + 16), 0u) << "a first burst";
  EXPECT_EQ(left(0, 30 + 17), 1u);
  EXPECT_EQ(left(10, 20 + 17), 1u) << "what is live again does not come on top";
  page_counts.huge_live.add(200 * kMiB);
  EXPECT_EQ(left(0, 17), 1u) << "it is looked at; it may be untouched";
  page_counts.huge_live.sub(200 * kMiB);
  EXPECT_EQ(left(0, 30 + 17), 1u) << "so it does not count as what was live lately";
  grows_to(300);
  EXPECT_EQ(left(0, 300), 300u - 32 - 16) << "no more than kAgainFirst";
  note_purged_to_bound(100 * kMiB);
  EXPECT_EQ(left(0, 300), 300u - 32 - 16) << "not before it comes back";
  grows_to(70);
  EXPECT_EQ(left(0, 300), 300u - 32 - 70 - 32) << "what came back, and a quarter of it, but no more than dirty_floor";
  grows_to(200);
  EXPECT_EQ(left(0, 300), 300u - 32 - 100 - 32) << "no more than was purged";
  {
    const Counts live(50 * kSigned, 0, false);
    note_purged_to_bound(40 * kMiB);
  }
  note_purged_to_bound(40 * kMiB);
  grows_to(300);
  EXPECT_EQ(left(0, 300), 300u - 32 - 180 - 32) << "by several purges";
  note_purged_to_bound(400 * kMiB);
  grows_to(300);
  EXPECT_EQ(left(0, 300), 300u - 256 - 32) << "no more than kAgainMost";
  page_counts.huge_live.add(200 * kMiB);
  EXPECT_EQ(left(0, 300), 300u - 100 - 32) << "not beside live huge objects";
  page_counts.huge_live.sub(200 * kMiB);
  set_timekeeper(true);
  EXPECT_EQ(left(0, 300), 0u) << "left to the housekeeper";
  {
    const Counts freed(0, 300 * kSigned, false);
    EXPECT_EQ(dirty_over_bound() / kMiB, 300u - 32) << "which spares what is used in turns anyway";
  }
  {
    const Counts freed(0, 300 * kSigned, true);
    EXPECT_EQ(dirty_over_bound() / kMiB, 300u - 64 - 16) << "what came back does not come on top of large objects";
  }
  set_timekeeper(false);
  forget_recent_live();
  EXPECT_EQ(left(0, 300), 300u - 32) << "a tick later nothing but the floor";
  grows_to(300);
  EXPECT_EQ(left(0, 300), 300u - 32 - 128 - 32) << "and half of what was purged in vain";
  for (unsigned tick = 0; tick < 40; ++tick) forget_recent_live();
}

TEST(Retain, OfHugeObjectsMoreIsToleratedWhereItWasPurgedInVain) {
  const SavedOptions saved;
  options.dirty_floor = 16;
  forget_recent_live();
  const auto turn = [](int64_t most, int64_t live) {
    {
      const Counts before(most * kSigned, 50 * kSigned, true);
      EXPECT_EQ(dirty_excess(), 0u);
    }
    const Counts freed(live * kSigned, 300 * kSigned, true);
    return dirty_excess() / kMiB;
  };
  EXPECT_EQ(turn(200, 0), 300u - 64 - 16);
  note_huge_purged_to_bound(100 * kMiB);
  EXPECT_EQ(turn(200, 0), 300u - 64 - 16) << "not before it comes back";
  count_huge_refilled(150 * kMiB, 200 * kMiB, 64 * kMiB);
  EXPECT_EQ(turn(200, 0), 300u - 64 - 86 - 16);
  count_huge_refilled(200 * kMiB, 150 * kMiB, 100 * kMiB);
  EXPECT_EQ(turn(200, 0), 300u - 64 - 100 - 16) << "no more than was purged";
  EXPECT_EQ(turn(200, 60), 300u - 64 - 80 - 16) << "beside what lives on less";
  EXPECT_EQ(turn(200, 100), 300u - 64 - 25) << "or nothing";
  set_timekeeper(true);
  {
    const Counts freed(0, 300 * kSigned, true);
    EXPECT_EQ(dirty_over_bound() / kMiB, 300u - 64 - 16) << "a housekeeper spares what is used in turns anyway";
  }
  set_timekeeper(false);
  forget_recent_live();
  EXPECT_EQ(turn(200, 0), 300u - 64 - 50 - 16) << "half of it a tick later";
  note_huge_purged_to_bound(900 * kMiB);
  count_huge_refilled(900 * kMiB, 900 * kMiB, 0);
  EXPECT_EQ(turn(400, 0), 300u - 256 - 16) << "no more than kAgainMost";
  for (unsigned tick = 0; tick < 40; ++tick) forget_recent_live();
}

TEST(Retain, PassesInVainAreRepeatedWhenALittleMoreIsDirty) {
  const SavedOptions saved;
  options.dirty_floor = 1;
  for (const auto& [dirty, wait] : {std::pair{4, 1}, {16, 2}, {100, 4}, {5000, 4}}) {
    const Counts counts(0, dirty * kSigned, false);
    forget_recent_live();
    note_pass(true);
    EXPECT_GT(dirty_excess(), 0u) << "one may be chance";
    note_pass(true);
    EXPECT_EQ(dirty_excess(), 0u);
    {
      const Counts almost(0, wait * kSigned - 1, false);
      EXPECT_EQ(dirty_excess(), 0u) << dirty;
    }
    {
      const Counts more(0, wait * kSigned, false);
      EXPECT_GT(dirty_excess(), 0u) << dirty;
    }
    {
      const Counts more(0, wait * kSigned, false);
      note_pass(false);
    }
    EXPECT_GT(dirty_excess(), 0u) << "one that found something ends the wait";
    note_pass(true);
    note_pass(true);
    EXPECT_EQ(dirty_excess(), 0u);
    forget_recent_live();
    EXPECT_GT(dirty_excess(), 0u) << "at a tick";
  }
}

TEST(Retain, WithoutDecayNothingIsTolerated) {
  const SavedOptions saved;
  options.decay = 0;
  EXPECT_EQ(excess(1000, 3), 3u);
  EXPECT_EQ(excess(1000, 0), 0u);
  set_timekeeper(true);
  EXPECT_EQ(excess(1000, 3), 3u) << "also beside a housekeeper";
  set_timekeeper(false);
}

TEST(Retain, WhileAHousekeeperKeepsTimeTheBoundIsItsOwnMatter) {
  set_timekeeper(true);
  EXPECT_EQ(excess(0, 5000), 0u) << "of the program's calls";
  set_timekeeper(false);
  EXPECT_EQ(excess(0, 5000), 5000u - static_cast<size_t>(options.dirty_floor));
}

TEST(Retain, EstimatesThatAreOffTheMarkAreSurvived) {
  EXPECT_EQ(excess(-10, 5), 0u);
  EXPECT_EQ(excess(0, -5), 0u);
  EXPECT_EQ(excess(-1000, 40), 40u - static_cast<size_t>(options.dirty_floor)) << "a negative quarter is no bound";
}

}  // namespace
