#include "space/pages.h"

#include "os/os.h"
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

TEST(Pages, WithoutDecayNothingIsTolerated) {
  const SavedOptions saved;
  options.decay = 0;
  EXPECT_EQ(excess(1000, 3), 3u);
  EXPECT_EQ(excess(1000, 0), 0u);
  set_timekeeper(true);
  EXPECT_EQ(excess(1000, 3), 3u) << "also beside a housekeeper";
  set_timekeeper(false);
}

TEST(Pages, WhileAHousekeeperKeepsTimeThereIsNoBound) {
  set_timekeeper(true);
  EXPECT_EQ(excess(0, 5000), 0u);
  set_timekeeper(false);
  EXPECT_EQ(excess(0, 5000), 5000u - static_cast<size_t>(options.dirty_floor));
}

TEST(Pages, EstimatesThatAreOffTheMarkAreSurvived) {
  EXPECT_EQ(excess(-10, 5), 0u);
  EXPECT_EQ(excess(0, -5), 0u);
  EXPECT_EQ(excess(-1000, 40), 40u - static_cast<size_t>(options.dirty_floor)) << "a negative quarter is no bound";
}

TEST(Pages, PurgesAreCounted) {
  const size_t page = os::page_bytes();
  auto* const at = static_cast<char*>(os::reserve(4 * page, page));
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
