#include "space/huge_pace.h"

#include "os/os.h"
#include "store/descriptor.h"
#include "unit/child.h"
#include "unit/store/fresh_heap.h"
#include "unit/store/take_give.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr uint64_t kSlowUs = 5000;

TEST(HugePace, AQuickOneMeansNoPause) {
  note_huge_page(300, true);
  EXPECT_TRUE(huge_pages_due());
}

unsigned trusted_in_a_row() {
  unsigned n = 0;
  while (n < 1000 && trust_huge_pages()) ++n;
  return n;
}

TEST(HugePace, QuickOnesAreTrustedMoreAndMore) {
  note_huge_page(kSlowUs, true);
  EXPECT_EQ(trusted_in_a_row(), 0u);
  for (const unsigned n : {1u, 3u, 7u, 15u, 31u, 63u, 63u}) {
    note_huge_page(300, true);
    EXPECT_EQ(trusted_in_a_row(), n);
  }
  note_huge_page(300, false);
  EXPECT_EQ(trusted_in_a_row(), 0u);
  note_huge_page(300, true);
  EXPECT_EQ(trusted_in_a_row(), 1u);
}

uint64_t pause_after(uint64_t us, bool came) {
  const uint64_t before = os::now_ms();
  note_huge_page(us, came);
  EXPECT_FALSE(huge_pages_due());
  while (!huge_pages_due()) sleep_ms(1);
  return os::now_ms() - before;
}

void be_quick_for_long() {
  for (unsigned i = 0; i < 6; ++i) note_huge_page(300, true);
}

TEST(HugePace, ASlowOneMeansAPauseInProportion) {
  be_quick_for_long();
  for (const uint64_t times : {4u, 8u, 16u, 16u}) {
    EXPECT_GE(pause_after(kSlowUs, true), times * kSlowUs / 1000);
    note_huge_page(300, true);  // a quick one between changes nothing
  }
  be_quick_for_long();
}

// No upper bound elsewhere, as a machine may be slow; but the first pause of several is short on any.
TEST(HugePace, OneThatIsSlowByChanceCostsLittle) {
  uint64_t shortest = ~uint64_t{0};
  for (unsigned turn = 0; turn < 20; ++turn) {
    be_quick_for_long();
    shortest = std::min(shortest, pause_after(kSlowUs, true));
  }
  EXPECT_LT(shortest, 8 * kSlowUs / 1000);
  be_quick_for_long();
}

TEST(HugePace, AQuickOneEndsAPause) {
  note_huge_page(1000 * kSlowUs, true);
  EXPECT_FALSE(huge_pages_due());
  note_huge_page(0, true);
  EXPECT_TRUE(huge_pages_due());
}

TEST(HugePace, NothingIsTriedInAPause) {
  note_huge_page(1000 * kSlowUs, true);
  // Twenty, as the first may be slow.
  for (unsigned i = 0; i < 20; ++i) EXPECT_FALSE(try_huge_page());
  EXPECT_FALSE(huge_pages_due()) << "a quick one would have ended it";
  note_huge_page(0, true);
}

TEST(HugePace, SmallPagesInPlaceOfAHugeOneMeanAPauseThatDoubles) {
  uint64_t last = 0;
  for (unsigned turn = 0; turn < 3; ++turn) {
    const uint64_t before = os::now_ms();
    note_huge_page(300, false);
    EXPECT_FALSE(huge_pages_due());
    while (!huge_pages_due()) sleep_ms(1);
    EXPECT_GE(os::now_ms() - before, 2 * last);
    last = uint64_t{64} * 300 / 1000 << (turn + 1);
    EXPECT_GE(os::now_ms() - before, last);
  }
  note_huge_page(300, true);
  EXPECT_TRUE(huge_pages_due());
}

// Returns how many of the bin's chunks are parts of huge pages once it has had eight clusters of them: a heap of six
// and more gets some.
unsigned huge_of_many(BinId bin) {
  const std::vector<void*> objects = take_many(bin, 8 * kClusterChunks * info_of(bin).objects);
  unsigned huge = 0;
  visit_chunks(process_store, bin, [&](Descriptor& d) {
    huge += d.backing() == Backing::kHuge ? 1 : 0;
    return true;
  });
  give_many(bin, objects);
  return huge;
}

TEST(HugePace, WhereTheyAreOffThereIsAPause) {
  const int result = in_child([] {
    if (os::page_bytes() != 4096 || prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) return kCannot;
    note_huge_page(0, true);
    while (trust_huge_pages()) {  // none is timed while some are trusted
    }
    // On a slow machine a pause may be over before the next line. Each is twice as long as the one before.
    for (size_t size = 64; size <= 2048 && huge_pages_due(); size += size / 4) huge_of_many(bin_of(size));
    EXPECT_FALSE(huge_pages_due());
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "an emulator, or pages of another size";
  EXPECT_EQ(result, kPassed);
}

// A machine may be slow once, and for a while where much else runs, but hardly in each of many tries.
TEST(HugePace, WhereTheyAreOffATryTouchesOnePage) {
  const int result = in_child([] {
    if (os::page_bytes() != 4096 || prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) return kCannot;
    unsigned small = 0;
    for (unsigned i = 0; i < 50 || (small == 0 && i < 5000); ++i) {
      auto* const cluster = static_cast<char*>(os::reserve(kClusterBytes, kClusterBytes));
      if (!os::commit(cluster, kClusterBytes) || !os::prefer_huge_pages(cluster, kClusterBytes)) return kCannot;
      const Touched touched = time_huge_page(cluster);
      if (touched == Touched::kNone) return kCannot;
      EXPECT_EQ(resident_pages(cluster, kClusterBytes), touched == Touched::kOnePage ? 1 : kClusterBytes / 4096);
      small += touched == Touched::kOnePage ? 1 : 0;
      os::unreserve(cluster, kClusterBytes);
    }
    EXPECT_GT(small, 0u);
    EXPECT_FALSE(huge_pages_due());
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "an emulator, an older kernel, or pages of another size";
  EXPECT_EQ(result, kPassed);
}

TEST(HugePace, ChunksAreOfSmallPagesInAPause) {
  EXPECT_EQ(in_child([] {
              note_huge_page(1000 * kSlowUs, true);
              EXPECT_EQ(huge_of_many(bin_of(64)), 0u);
              note_huge_page(0, true);
              if (os::huge_pages_come()) EXPECT_NE(huge_of_many(bin_of(48)), 0u);
              return ::testing::Test::HasFailure() ? kFailed : kPassed;
            }),
            kPassed);
}

}  // namespace
