// Which huge objects get huge pages.
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <vector>

#include "os/os.h"
#include "space/huge.h"
#include "space/huge_pace.h"
#include "space/room.h"
#include "unit/mappings.h"
#include "unit/space/huge_blocks.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

const size_t page = os::page_bytes();

size_t resident_pages(const char* start, size_t bytes) {
  std::vector<unsigned char> pages(bytes / page);
  EXPECT_EQ(mincore(const_cast<char*>(start), bytes, pages.data()), 0);
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
}

size_t give_all_back() { return huge_purge(true, ~size_t{0}); }

class HugeAdvice : public ::testing::Test {
 protected:
  HugeAdvice() { give_all_back(); }
  ~HugeAdvice() override {
    memory_room.counted.set(false);
    give_all_back();
  }
  SavedOptions saved_;
};

TEST_F(HugeAdvice, AnObjectThatMovesAsItGrowsGetsHugePages) {
  constexpr size_t kBytes = 12 * kClusterBytes;
  options.dirty_floor = 64;
  const auto grown = [] {
    HugeBlock* const small = huge_alloc(kBytes, 1);
    EXPECT_FALSE(small->advised);
    fill(small, 1);
    HugeBlock* const moved = huge_move(small, 2 * kBytes);
    EXPECT_TRUE(filled(moved, kBytes, 1));
    return moved;
  };
  const auto faults_of_writing_the_rest = [](HugeBlock* block) {
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    for (size_t at = kBytes; at < 2 * kBytes; at += page) block->base[at] = 1;
    getrusage(RUSAGE_SELF, &after);
    return after.ru_minflt - before.ru_minflt;
  };
  note_huge_page(100, true);  // whatever earlier tests found
  HugeBlock* block = grown();
  if (os::huge_pages_come() && page == kPageBytesLeast && huge_pages_due()) {
    EXPECT_TRUE(block->advised);
    EXPECT_LE(faults_of_writing_the_rest(block), static_cast<long>(kBytes / page / 8)) << "some may be small";
  }
  huge_free(block);
  // It says nothing of the block's next object, if that is one of zeroes.
  HugeBlock* const next = huge_alloc(2 * kBytes, 1);
  huge_foresee(next, true);
  EXPECT_EQ(next, block);
  EXPECT_FALSE(next->advised);
  huge_free(next);
  give_all_back();
  // Nor while huge pages are slow to come, or refused.
  note_huge_page(10'000'000, true);
  block = grown();
  EXPECT_FALSE(block->advised);
  huge_free(block);
  give_all_back();
  note_huge_page(100, true);
  options.huge_pages = kHugePagesNever;
  block = grown();
  EXPECT_FALSE(block->advised);
  huge_free(block);
}

TEST_F(HugeAdvice, ObjectsThatNeedNotBeZeroGetHugePages) {
  constexpr size_t kBytes = 12 * kClusterBytes;
  options.dirty_floor = 1024;
  if (!os::huge_pages_come()) GTEST_SKIP() << "the system has no huge pages";
  bool slow = false;  // a page that was timed: the advice is taken back
  const auto make = [&](size_t bytes, bool zeroed) {
    note_huge_page(100, true);  // whatever was found before
    HugeBlock* const block = huge_alloc(bytes, 1);
    huge_foresee(block, zeroed);
    slow = slow || !huge_pages_due();
    return block;
  };
  HugeBlock* block = make(kBytes, true);
  EXPECT_FALSE(block->advised);
  huge_free(block);
  EXPECT_EQ(make(kBytes, false), block);
  EXPECT_TRUE(block->advised || slow);
  EXPECT_EQ(block->foreseen, block->advised ? 12u : 0u);
  EXPECT_TRUE(huge_resize(block, kBytes + 1));
  EXPECT_EQ(block->foreseen, block->advised ? 13u : 0u) << "it has grown in place";
  huge_free(block);
  EXPECT_EQ(block->foreseen, block->advised ? 13u : 0u) << "its pages are there still";
  EXPECT_EQ(huge_purge(true, 4 * kClusterBytes), 4 * kClusterBytes);
  EXPECT_EQ(block->foreseen, block->advised ? 9u : 0u);
  EXPECT_TRUE(block->advised || slow) << "for the next one";
  EXPECT_EQ(make(kBytes, true), block);
  EXPECT_FALSE(block->advised) << "which shall not be huge";
  huge_free(block);
  give_all_back();
  block = huge_alloc(8, 4 * kMiB);
  huge_foresee(block, false);
  EXPECT_FALSE(block->advised) << "a small one that is aligned";
  huge_free(block);
  note_huge_page(10'000'000, true);
  block = huge_alloc(kBytes, 1);
  huge_foresee(block, false);
  EXPECT_FALSE(block->advised) << "while huge pages are slow";
  huge_free(block);
  options.huge_pages = kHugePagesNever;
  block = make(kBytes, false);
  EXPECT_FALSE(block->advised);
  huge_free(block);
}

TEST_F(HugeAdvice, SuchObjectsAreFew) {
  constexpr size_t kBytes = 12 * kClusterBytes;
  options.dirty_floor = 1024;
  if (!os::huge_pages_come()) GTEST_SKIP() << "the system has no huge pages";
  bool slow = false;  // as above
  const auto make = [&](size_t bytes) {
    note_huge_page(100, true);
    HugeBlock* const block = huge_alloc(bytes, 1);
    huge_foresee(block, false);
    slow = slow || !huge_pages_due();
    return block;
  };
  HugeBlock* const most = make(kForeseenMost);
  EXPECT_TRUE(most->advised || slow);
  HugeBlock* const more = make(kBytes);
  EXPECT_FALSE(more->advised && most->advised) << "no more than so many at a time";
  huge_free(most);
  HugeBlock* const other = make(kBytes);
  EXPECT_NE(other, most);
  EXPECT_FALSE(other->advised && most->advised) << "its pages are there still";
  EXPECT_EQ(make(kForeseenMost), most);
  EXPECT_TRUE(most->advised || slow) << "and may be used again";
  huge_free(most);
  huge_free(more);
  huge_free(other);
  give_all_back();
  HugeBlock* const larger = make(kForeseenMost + kClusterBytes);
  EXPECT_FALSE(larger->advised);
  huge_free(larger);
  give_all_back();
  HugeBlock* const block = make(kForeseenMost);
  EXPECT_TRUE(block->advised || slow) << "what was given back no longer counts";
  huge_free(block);
}

TEST_F(HugeAdvice, WhatGrowsInPlaceCounts) {
  options.dirty_floor = 1024;
  if (!os::huge_pages_come()) GTEST_SKIP() << "the system has no huge pages";
  constexpr size_t kClusters = kForeseenMost / kClusterBytes;
  note_huge_page(100, true);
  HugeBlock* const block = huge_alloc(kForeseenMost / 2 + kClusterBytes, 1);
  huge_foresee(block, false);
  if (!block->advised) GTEST_SKIP() << "huge pages are slow";
  EXPECT_TRUE(huge_resize(block, kForeseenMost));
  EXPECT_TRUE(block->advised);
  EXPECT_FALSE(foreseen_huge.has_room(1));
  EXPECT_FALSE(foreseen_huge.add(1));
  EXPECT_TRUE(huge_resize(block, 9 * kClusterBytes));
  EXPECT_EQ(block->foreseen, 9u) << "what was beyond is given back";
  ASSERT_TRUE(foreseen_huge.add(kClusters - 9));
  EXPECT_TRUE(huge_resize(block, 10 * kClusterBytes));
  EXPECT_FALSE(block->advised) << "no room for more";
  EXPECT_EQ(block->foreseen, 9u);
  foreseen_huge.note(9 - static_cast<int64_t>(kClusters));
  huge_free(block);
  give_all_back();
  EXPECT_TRUE(foreseen_huge.has_room(kClusters)) << "nothing is left of it";
}

// Half of their last cluster, and a quarter.
constexpr size_t kLarger = 15 * kClusterBytes + kMiB, kSmaller = 9 * kClusterBytes + kMiB / 2;

// A limit counts objects to the page.
TEST_F(HugeAdvice, NothingBeyondAnObjectWhereALimitIsSet) {
  options.dirty_floor = 1024;
  if (!os::huge_pages_come()) GTEST_SKIP() << "the system has no huge pages";
  memory_room.counted.set(true);
  note_huge_page(100, true);
  HugeBlock* const block = huge_alloc(kLarger, 1);
  huge_foresee(block, false);
  if (!block->advised) GTEST_SKIP() << "huge pages are slow";
  EXPECT_EQ(block->committed_bytes, kLarger);
  fill(block, 1);
  huge_free(block);
  EXPECT_EQ(huge_alloc(kSmaller, 1), block);
  EXPECT_EQ(block->touched_bytes, kSmaller);
  huge_free(block);
  give_all_back();
}

// Nor where the system's setting is `always`: what has no advice of its own could become huge. (256 objects a little
// above 8 MiB, and fewer that had grown, had up to 2 MiB each that was not counted.)
TEST_F(HugeAdvice, OnlyWholeClustersOfAnObjectWhereALimitIsSet) {
  if (kEmulated) GTEST_SKIP() << "an emulator takes no advice";
  options.dirty_floor = 1024;
  const bool kernel_has_them = os::huge_pages_come();
  memory_room.counted.set(true);
  const auto may_be_huge = [](const char* at) { return mapping_flags(at).find(" nh ") == std::string::npos; };
  HugeBlock* const block = huge_alloc(kLarger, 1);
  if (kernel_has_them) {
    EXPECT_FALSE(may_be_huge(block->base));
  }
  note_huge_page(100, true);
  huge_foresee(block, false);
  if (!block->advised) GTEST_SKIP() << "no huge pages, or they are slow";
  EXPECT_TRUE(may_be_huge(block->base));
  EXPECT_TRUE(may_be_huge(block->base + 14 * kClusterBytes));
  EXPECT_FALSE(may_be_huge(block->base + 15 * kClusterBytes));
  EXPECT_TRUE(huge_resize(block, kLarger + kMiB / 2));
  EXPECT_FALSE(may_be_huge(block->base + 15 * kClusterBytes));
  huge_free(block);
  EXPECT_EQ(huge_alloc(kSmaller, 1), block);
  EXPECT_FALSE(may_be_huge(block->base + 9 * kClusterBytes));
  huge_free(block);
  give_all_back();
}

// Small pages would come back in place of a part of one.
TEST_F(HugeAdvice, NoHugePageIsSplitForASmallerObject) {
  options.dirty_floor = 1024;
  if (!os::huge_pages_come()) GTEST_SKIP() << "the system has no huge pages";
  note_huge_page(100, true);
  HugeBlock* const block = huge_alloc(kLarger, 1);
  EXPECT_EQ(block->committed_bytes, kLarger);
  huge_foresee(block, false);
  if (!block->advised) GTEST_SKIP() << "huge pages are slow";
  EXPECT_EQ(block->committed_bytes, 16 * kClusterBytes) << "so that the last cluster may be huge";
  fill(block, 1);
  huge_free(block);
  EXPECT_EQ(block->touched_bytes, 16 * kClusterBytes);
  EXPECT_EQ(huge_alloc(kSmaller, 1), block);
  EXPECT_EQ(block->touched_bytes, 10 * kClusterBytes);
  EXPECT_EQ(resident_pages(block->base, 16 * kClusterBytes), 10 * kClusterBytes / page);
  huge_free(block);
  give_all_back();
  HugeBlock* const little = huge_alloc(kSmaller, 1);
  huge_foresee(little, false);
  EXPECT_EQ(little->committed_bytes, kSmaller) << "less than half of the last cluster";
  huge_free(little);
  give_all_back();
  HugeBlock* const plain = huge_alloc(kLarger, 1);
  huge_foresee(plain, true);
  EXPECT_EQ(plain->committed_bytes, kLarger);
  fill(plain, 1);
  huge_free(plain);
  EXPECT_EQ(huge_alloc(kSmaller, 1), plain);
  EXPECT_EQ(plain->touched_bytes, kSmaller) << "small pages: to the page";
  huge_free(plain);
  give_all_back();
}

// It may be registered with a userfaultfd, which need not answer.
TEST_F(HugeAdvice, ABlockThatTheProgramHadIsNotTouched) {
  constexpr size_t kBytes = 12 * kClusterBytes;
  options.dirty_floor = 1024;
  HugeBlock* const block = huge_alloc(kBytes, 1);
  fill(block, 1);
  huge_free(block);
  EXPECT_EQ(huge_purge(true, kBytes / 2), kBytes / 2);
  note_huge_page(10'000'000, true);
  note_huge_page(100, true);  // one is trusted
  EXPECT_EQ(huge_alloc(kBytes, 1), block);
  huge_foresee(block, false);
  EXPECT_FALSE(block->advised);
  EXPECT_EQ(resident_pages(block->base + kBytes / 2, kBytes / 2), 0u);
  EXPECT_EQ(block->foreseen, 0u) << "its small pages do not count";
  huge_free(block);
}

}  // namespace
