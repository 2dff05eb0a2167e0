#include "space/pages.h"

#include "os/os.h"
#include "unit/child.h"
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

TEST(Pages, NothingIsDirtyAtFirst) {
  EXPECT_EQ(page_counts.resident.load(order::relaxed), 0);
  EXPECT_EQ(page_counts.dirty.load(order::relaxed), 0);
  EXPECT_EQ(dirty_excess(), 0u);
}

TEST(Pages, DirtyMemoryIsToleratedUpToTheFloorOrAQuarterOfWhatIsLive) {
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

TEST(Pages, OfLargeObjectsTwiceWhatIsLiveIsTolerated) {
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
  set_live_huge(10 * kMiB);
  EXPECT_EQ(excess(0, 36, true), 0u) << "what is live of huge objects, as far as known";
  EXPECT_EQ(excess(0, 37, true), 1u);
  cap_live_huge(5 * kMiB);
  EXPECT_EQ(excess(0, 37, true), 11u);
  cap_live_huge(0);
  EXPECT_EQ(excess(0, 17, true), 1u);
}

TEST(Pages, OfLargeObjectsWhatWasLiveSinceTheLastTickIsTolerated) {
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

TEST(Pages, WhatWasPurgedAndWantedAgainIsTolerated) {
  const SavedOptions saved;
  options.dirty_floor = 16;
  EXPECT_EQ(excess(0, 40), 24u) << "a first burst";
  const Counts rest(10 * kSigned, 17 * kSigned, false);
  note_purged_to_bound();
  EXPECT_EQ(dirty_excess() / kMiB, 1u);
  {
    const Counts again(50 * kSigned, 0, false);
    EXPECT_EQ(dirty_excess() / kMiB, 1u) << "all of that is live";
  }
  {
    const Counts freed(0, 30 * kSigned, false);
    EXPECT_EQ(dirty_excess(), 0u) << "47 MiB, of 50 and a floor";
  }
  {
    const Counts more(0, 50 * kSigned, false);
    EXPECT_EQ(dirty_excess() / kMiB, 1u);
    note_purged_to_bound();
    EXPECT_EQ(dirty_excess() / kMiB, 1u) << "a purge of what is too much leaves the rest";
  }
  {
    const Counts again(200 * kSigned, 17 * kSigned, false);
    EXPECT_EQ(dirty_excess(), 0u);
  }
  {
    const Counts freed(0, 200 * kSigned, false);
    EXPECT_EQ(dirty_excess() / kMiB, 217u - 64 - 16) << "no more than kTolerated";
    forget_recent_live();
    EXPECT_EQ(dirty_excess() / kMiB, 217u - 16) << "a tick later nothing but the floor";
  }
}

TEST(Pages, WithoutDecayNothingIsTolerated) {
  const SavedOptions saved;
  options.decay = 0;
  EXPECT_EQ(excess(1000, 3), 3u);
  EXPECT_EQ(excess(1000, 0), 0u);
  set_timekeeper(true);
  EXPECT_EQ(excess(1000, 3), 3u) << "also beside a housekeeper";
  set_timekeeper(false);
}

TEST(Pages, WhileAHousekeeperKeepsTimeTheBoundIsItsOwnMatter) {
  set_timekeeper(true);
  EXPECT_EQ(excess(0, 5000), 0u) << "of the program's calls";
  set_timekeeper(false);
  EXPECT_EQ(excess(0, 5000), 5000u - static_cast<size_t>(options.dirty_floor));
}

TEST(Pages, EstimatesThatAreOffTheMarkAreSurvived) {
  EXPECT_EQ(excess(-10, 5), 0u);
  EXPECT_EQ(excess(0, -5), 0u);
  EXPECT_EQ(excess(-1000, 40), 40u - static_cast<size_t>(options.dirty_floor)) << "a negative quarter is no bound";
}

// ---- zero_pages ----

// A range whose pages hold 0xa5, or nothing, as `holds` says of each.
class Range {
 public:
  explicit Range(size_t pages) : bytes_(pages * page_), at_(static_cast<char*>(os::reserve(bytes_, page_))) {
    EXPECT_TRUE(os::commit(at_, bytes_));
  }
  ~Range() { os::unreserve(at_, bytes_); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  template <class Holds>
  void touch(Holds&& holds) {
    EXPECT_TRUE(os::purge(at_, bytes_));
    for (size_t i = 0; i < bytes_ / page_; ++i) {
      if (holds(i)) memset(at_ + i * page_, 0xa5, page_);
    }
  }
  size_t resident_pages() const {
    std::vector<unsigned char> there(bytes_ / page_);
    EXPECT_TRUE(residency(at_, bytes_, there.data()));
    size_t n = 0;
    for (const unsigned char page : there) n += page & 1;
    return n;
  }
  char* at() const { return at_; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t page_ = os::page_bytes();
  const size_t bytes_;
  char* const at_;
};

TEST(ZeroPages, AnyRangeOfAnyPagesBecomesZeroAndNothingElse) {
  const size_t page = os::page_bytes();
  Range range(kZeroByPurge / page + 700);
  std::mt19937 random(9);
  for (unsigned round = 0; round < rounds(60); ++round) {
    const unsigned often = 1 + random() % 50;
    range.touch([&](size_t) { return random() % often == 0; });
    std::vector<char> before(range.at(), range.at() + range.bytes());
    const size_t from = random() % (699 * page);
    const size_t bytes = random() % 2 == 0 ? random() % (4 * page) : kZeroByPurge - page + random() % (2 * page);
    zero_pages(range.at() + from, bytes);
    ASSERT_TRUE(all_zero(range.at() + from, bytes)) << from << " " << bytes;
    ASSERT_EQ(memcmp(range.at(), before.data(), from), 0);
    ASSERT_EQ(memcmp(range.at() + from + bytes, before.data() + from + bytes, range.bytes() - from - bytes), 0);
  }
}

TEST(ZeroPages, OfALargeRangeThePagesGoBack) {
  Range range(kZeroByPurge / os::page_bytes());
  range.touch([](size_t) { return true; });
  const PageDelta delta;
  zero_pages(range.at(), range.bytes());
  EXPECT_EQ(range.resident_pages(), 0u);
  EXPECT_EQ(delta.purged(), range.bytes());
}

TEST(ZeroPages, WhatIsSmallerIsCleared) {
  Range range(kZeroByPurge / os::page_bytes() - 1);
  range.touch([](size_t) { return true; });
  zero_pages(range.at(), range.bytes());
  EXPECT_EQ(range.resident_pages(), range.bytes() / os::page_bytes());
  EXPECT_TRUE(all_zero(range.at(), range.bytes()));
}

TEST(ZeroPages, WhatMayNotGoIsCleared) {
  Range range(kZeroByPurge / os::page_bytes());
  range.touch([](size_t i) { return i % 8 == 0; });
  if (!lock_page(range.at() + 16 * os::page_bytes())) GTEST_SKIP() << "no memory may be locked here";
  zero_pages(range.at(), range.bytes());
  EXPECT_TRUE(all_zero(range.at(), range.bytes()));
  unlock_page(range.at() + 16 * os::page_bytes());
}

TEST(Pages, PurgesAreCounted) {
  const size_t page = os::page_bytes();
  auto* const at = static_cast<char*>(os::reserve(4 * page, page));
  ASSERT_TRUE(os::commit(at, 4 * page));
  memset(at, 3, 4 * page);
  const PageDelta delta;
  EXPECT_TRUE(purge_pages(at, 3 * page));
  EXPECT_EQ(delta.purged(), 3 * page);
  EXPECT_EQ(delta.calls(), 1u);
  EXPECT_TRUE(all_zero(at, 3 * page));
  EXPECT_EQ(at[3 * page], 3);
  EXPECT_TRUE(purge_pages(at, 0));
  EXPECT_EQ(delta.calls(), 1u) << "nothing to do is no call";
  EXPECT_FALSE(purge_pages(at + 1, page));
  EXPECT_EQ(delta.purged(), 3 * page);
  EXPECT_EQ(delta.calls(), 2u);
  EXPECT_EQ(delta.resident(), 0) << "the caller knows what it was";
  os::unreserve(at, 4 * page);
}

}  // namespace
