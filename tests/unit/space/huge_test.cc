#include "space/huge.h"

#include <errno.h>
#include <sys/syscall.h>

#include <thread>

#include "core/clock.h"
#include "os/os.h"
#include "space/metadata.h"
#include "unit/child.h"
#include "unit/space/huge_blocks.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

const size_t page = os::page_bytes();

size_t usable(size_t size) { return round_up(size, page); }

bool live(const HugeBlock* block) { return block->state.load(order::relaxed) == kHugeLive; }

// What the clock does.
size_t tick() {
  const size_t purged = huge_purge(false, ~size_t{0});
  huge_age();
  return purged;
}

size_t give_all_back() { return huge_purge(true, ~size_t{0}); }

// Starts and ends with no block waiting, so that each test sees its own only.
class Huge : public ::testing::Test {
 protected:
  Huge() {
    options.dirty_floor = 16;
    give_all_back();
  }
  ~Huge() override {
    give_all_back();
    EXPECT_EQ(delta_.resident(), 0) << "everything was freed and given back";
    EXPECT_EQ(delta_.dirty(), 0);
    EXPECT_EQ(huge_live_bytes(), live_);
    EXPECT_EQ(huge_reserved_bytes(), reserved_);
  }
  SavedOptions saved_;
  PageDelta delta_;
  size_t live_ = huge_live_bytes();
  size_t reserved_ = huge_reserved_bytes();
};

TEST_F(Huge, WholePagesZeroedAndFoundByEveryAddress) {
  for (const size_t size : {size_t{1}, kMiB + 1, 2 * kMiB, 2 * kMiB + 1, 5 * kMiB, 64 * kMiB - 3}) {
    HugeBlock* const block = huge_alloc(size, 1);
    ASSERT_NE(block, nullptr);
    EXPECT_TRUE(aligned_to(block->base, kClusterBytes));
    EXPECT_EQ(block->usable_bytes, usable(size));
    EXPECT_GE(block->reserved_bytes, block->usable_bytes);
    EXPECT_TRUE(is_power_of_two(block->reserved_bytes));
    EXPECT_TRUE(live(block));
    EXPECT_EQ(huge_live_bytes(), live_ + usable(size));
    EXPECT_EQ(block->touched_bytes, 0u) << "fresh address space reads as zero";
    EXPECT_TRUE(all_zero(block->base, block->usable_bytes));
    fill(block, 1);
    EXPECT_EQ(chunk_code(block->base), kCodeHugeStart);
    for (size_t at = 0; at < block->reserved_bytes; at += kChunkBytes / 2) {
      EXPECT_EQ(huge_at(block->base + at), block);
      if (at >= kChunkBytes) EXPECT_EQ(chunk_code(block->base + at), kCodeHugeInside);
    }
    EXPECT_NE(huge_at(block->base - 1), block);
    EXPECT_NE(huge_at(block->base + block->reserved_bytes), block);
    EXPECT_TRUE(huge_free(block));
    give_all_back();
  }
}

TEST_F(Huge, SizeZeroIsAPage) {
  HugeBlock* const block = huge_alloc(0, 4 * kMiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->usable_bytes, page);
  EXPECT_TRUE(huge_free(block));
}

TEST_F(Huge, FreedTwiceIsReported) {
  HugeBlock* const block = huge_alloc(3 * kMiB, 1);
  EXPECT_TRUE(huge_free(block));
  EXPECT_FALSE(huge_free(block));
  EXPECT_FALSE(huge_free(block));
  EXPECT_FALSE(live(block));
}

TEST_F(Huge, WaitsForTheNextOfItsPowerOfTwo) {
  HugeBlock* const small = huge_alloc(3 * kMiB, 1);
  HugeBlock* const large = huge_alloc(5 * kMiB, 1);
  huge_free(small);
  huge_free(large);
  EXPECT_EQ(huge_alloc(4 * kMiB, kClusterBytes), small);
  EXPECT_EQ(huge_alloc(8 * kMiB, 1), large);
  EXPECT_TRUE(live(small));
  EXPECT_EQ(huge_live_bytes(), live_ + 12 * kMiB);
  huge_free(small);
  huge_free(large);
}

TEST_F(Huge, AccountsFollowAnObjectThroughItsLife) {
  HugeBlock* block = huge_alloc(3 * kMiB, 1);
  const auto size = static_cast<int64_t>(3 * kMiB);
  EXPECT_EQ(delta_.resident(), 0) << "what the program has touched of a live one is not known";
  huge_free(block);
  EXPECT_EQ(delta_.resident(), size);
  EXPECT_EQ(delta_.dirty(), size);
  EXPECT_EQ(huge_live_bytes(), live_);
  EXPECT_EQ(huge_alloc(3 * kMiB, 1), block);
  EXPECT_EQ(delta_.resident(), 0);
  EXPECT_EQ(delta_.dirty(), 0);
  huge_free(block);
  EXPECT_EQ(huge_purge(true, ~size_t{0}), static_cast<size_t>(size));
  EXPECT_EQ(delta_.resident(), 0);
  EXPECT_EQ(delta_.dirty(), 0);
  EXPECT_EQ(huge_purge(true, ~size_t{0}), 0u);
}

TEST_F(Huge, KnowsWhatReadsAsZeroWhenReused) {
  HugeBlock* block = huge_alloc(3 * kMiB, 1);
  fill(block, 1);
  huge_free(block);
  ASSERT_EQ(huge_alloc(4 * kMiB, 1), block);
  EXPECT_EQ(block->touched_bytes, 3 * kMiB);
  EXPECT_TRUE(all_zero(block->base + 3 * kMiB, kMiB));
  huge_free(block);
  EXPECT_EQ(give_all_back(), 4 * kMiB);
  EXPECT_EQ(huge_reserved_bytes(), reserved_) << "with its last page the block goes";
  block = huge_alloc(4 * kMiB, 1);
  EXPECT_EQ(block->touched_bytes, 0u);
  EXPECT_TRUE(all_zero(block->base, 4 * kMiB));
  huge_free(block);
}

TEST_F(Huge, PagesBeyondWhatIsAskedForGoWhenReused) {
  HugeBlock* block = huge_alloc(16 * kMiB, 1);
  fill(block, 1);
  huge_free(block);
  ASSERT_EQ(huge_alloc(9 * kMiB, 1), block);
  EXPECT_EQ(delta_.purged(), 7 * kMiB);
  EXPECT_EQ(block->touched_bytes, 9 * kMiB);
  EXPECT_TRUE(all_zero(block->base + 9 * kMiB, 7 * kMiB));
  EXPECT_TRUE(filled(block, 9 * kMiB, 1));
  huge_free(block);
}

TEST_F(Huge, ResizesInsideItsPowerOfTwo) {
  HugeBlock* const block = huge_alloc(3 * kMiB, 1);
  fill(block, 1);
  EXPECT_FALSE(huge_resize(block, 4 * kMiB + 1));
  EXPECT_EQ(block->usable_bytes, 3 * kMiB);
  EXPECT_TRUE(huge_resize(block, 4 * kMiB));
  EXPECT_EQ(block->usable_bytes, 4 * kMiB);
  EXPECT_EQ(huge_live_bytes(), live_ + 4 * kMiB);
  EXPECT_TRUE(filled(block, 3 * kMiB, 1));
  EXPECT_TRUE(all_zero(block->base + 3 * kMiB, kMiB));
  fill(block, 2);
  EXPECT_TRUE(huge_resize(block, 2 * kMiB + 5));
  EXPECT_EQ(block->usable_bytes, 2 * kMiB + page);
  EXPECT_EQ(huge_live_bytes(), live_ + 2 * kMiB + page);
  EXPECT_TRUE(filled(block, block->usable_bytes, 2));
  EXPECT_EQ(block->touched_bytes, block->usable_bytes) << "what was cut off has gone";
  EXPECT_TRUE(all_zero(block->base + block->usable_bytes, 4 * kMiB - block->usable_bytes));
  huge_free(block);
}

TEST_F(Huge, RefusesSizesThatNoOneHas) {
  HugeBlock* const block = huge_alloc(3 * kMiB, 1);
  errno = 0;
  for (const size_t size : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - page + 1, SIZE_MAX - page, SIZE_MAX / 2 + 1,
                            size_t{PTRDIFF_MAX}, size_t{1} << 62, size_t{1} << 48, size_t{1} << 47}) {
    EXPECT_FALSE(huge_resize(block, size)) << size;
    EXPECT_EQ(block->usable_bytes, 3 * kMiB) << size;
    EXPECT_EQ(huge_alloc(size, 1), nullptr) << size;
    EXPECT_EQ(huge_move(block, size), nullptr) << size;
  }
  for (unsigned shift = 47; shift < 64; ++shift) EXPECT_EQ(huge_alloc(kMiB, size_t{1} << shift), nullptr) << shift;
  EXPECT_EQ(errno, 0);
  EXPECT_TRUE(live(block));
  huge_free(block);
}

TEST_F(Huge, MovesPagesToALargerBlock) {
  HugeBlock* const block = huge_alloc(3 * kMiB, 1);
  fill(block, 3);
  HugeBlock* const moved = huge_move(block, 9 * kMiB);
  ASSERT_NE(moved, nullptr);
  ASSERT_NE(moved, block);
  EXPECT_EQ(moved->usable_bytes, 9 * kMiB);
  EXPECT_TRUE(live(moved));
  EXPECT_TRUE(filled(moved, 3 * kMiB, 3));
  EXPECT_GE(moved->touched_bytes, 3 * kMiB);
  EXPECT_TRUE(all_zero(moved->base + moved->touched_bytes, 9 * kMiB - moved->touched_bytes));
  EXPECT_FALSE(live(block));
  EXPECT_EQ(huge_live_bytes(), live_ + 9 * kMiB);
  EXPECT_EQ(delta_.dirty(), 0);
  EXPECT_EQ(huge_reserved_bytes(), reserved_ + 16 * kMiB) << "what it left has gone";
  huge_free(moved);
}

TEST_F(Huge, MovesIntoABlockThatWaitsDirty) {
  HugeBlock* const target = huge_alloc(8 * kMiB, 1);
  fill(target, 1);
  huge_free(target);
  HugeBlock* const block = huge_alloc(3 * kMiB, 1);
  fill(block, 2);
  ASSERT_EQ(huge_move(block, 7 * kMiB), target);
  EXPECT_TRUE(filled(target, 3 * kMiB, 2));
  huge_free(target);
}

TEST_F(Huge, AVectorThatGrowsKeepsItsContents) {
  HugeBlock* block = huge_alloc(kMiB + 1, 1);
  fill(block, 4);
  for (size_t size = 2 * kMiB; size <= 128 * kMiB; size += size / 2 + 12345) {
    const size_t before = block->usable_bytes;
    if (!huge_resize(block, size)) block = huge_move(block, size);
    ASSERT_NE(block, nullptr);
    ASSERT_TRUE(filled(block, before, 4)) << size;
    ASSERT_TRUE(all_zero(block->base + round_up(before, page), block->usable_bytes - round_up(before, page))) << size;
    fill(block, 4);
  }
  huge_free(block);
}

TEST_F(Huge, ATailThatCouldNotBeUnmappedIsNotTakenForZero) {
  const int result = in_child([] {
    HugeBlock* const block = huge_alloc(12 * kMiB, 1);
    fill(block, 5);
    if (!huge_resize(block, 10 * kMiB)) return kFailed;  // the tail is not worth a call and stays
    if (!refuse_call(SYS_munmap, ENOMEM)) return kCannot;
    HugeBlock* const moved = huge_move(block, 20 * kMiB);
    if (moved == nullptr || !filled(moved, 10 * kMiB, 5) || huge_alloc(12 * kMiB, 1) != block) return kFailed;
    return all_zero(block->base + block->touched_bytes, 12 * kMiB - block->touched_bytes) ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

TEST_F(Huge, WhatCannotBePurgedIsUnmapped) {
  HugeBlock* const block = huge_alloc(5 * kMiB, 1);
  fill(block, 5);
  if (!lock_page(block->base + 4 * kMiB)) {
    huge_free(block);
    GTEST_SKIP() << "no memory may be locked here";
  }
  huge_free(block);
  EXPECT_EQ(huge_purge(true, kMiB), 5 * kMiB) << "all, where a part was asked for";
  EXPECT_EQ(delta_.dirty(), 0);
  EXPECT_EQ(huge_reserved_bytes(), reserved_);
}

TEST_F(Huge, AlignmentBeyondAClusterAndItsSpaceGoesWhenFreed) {
  for (size_t alignment = 2 * kClusterBytes; alignment <= (size_t{1} << 34); alignment *= 4) {
    HugeBlock* const block = huge_alloc(kMiB, alignment);
    ASSERT_NE(block, nullptr) << alignment;
    char* const base = block->base;
    EXPECT_TRUE(aligned_to(base, alignment));
    memset(base, 1, kMiB);
    EXPECT_EQ(huge_reserved_bytes(), reserved_ + kClusterBytes);
    EXPECT_TRUE(huge_free(block));
    EXPECT_EQ(huge_reserved_bytes(), reserved_);
    EXPECT_EQ(chunk_code(base), kCodeNone);
    EXPECT_EQ(huge_at(base), nullptr);
    char byte;
    EXPECT_FALSE(os::peek(&byte, base, 1)) << "unmapped";
  }
}

TEST_F(Huge, AgedBlocksArePurgedAtTheSecondTick) {
  HugeBlock* const first = huge_alloc(2 * kMiB, 1);
  HugeBlock* const second = huge_alloc(2 * kMiB, 1);
  huge_free(first);
  EXPECT_EQ(tick(), 0u);
  huge_free(second);
  EXPECT_EQ(tick(), 2 * kMiB) << "the one that has waited for two";
  // Used in between, the other one starts to wait anew.
  ASSERT_EQ(huge_alloc(2 * kMiB, 1), second);
  huge_free(second);
  EXPECT_EQ(tick(), 0u);
  EXPECT_EQ(tick(), 2 * kMiB);
}

TEST_F(Huge, PurgeStopsAtItsBound) {
  HugeBlock* blocks[4];
  for (HugeBlock*& block : blocks) block = huge_alloc(2 * kMiB, 1);
  for (HugeBlock* block : blocks) huge_free(block);
  EXPECT_EQ(huge_purge(true, 1), 2 * kMiB) << "whole huge pages";
  EXPECT_EQ(huge_purge(true, 3 * kMiB), 4 * kMiB);
  EXPECT_EQ(huge_purge(true, ~size_t{0}), 2 * kMiB);
  // Also where more was purged than asked for, and blocks of other sizes wait.
  HugeBlock* others[] = {huge_alloc(2 * kMiB, 1), huge_alloc(5 * kMiB, 1), huge_alloc(9 * kMiB, 1)};
  for (HugeBlock* block : others) huge_free(block);
  EXPECT_EQ(huge_purge(true, 1), 2 * kMiB);
  EXPECT_EQ(delta_.dirty(), static_cast<int64_t>(14 * kMiB));
}

// So that a slow call of a small object does not take as long as a purge of gigabytes.
TEST_F(Huge, APurgeTakesAsMuchOfABlockAsItMayFromTheEnd) {
  HugeBlock* const block = huge_alloc(10 * kMiB, 1);
  fill(block, 1);
  block->base[6 * kMiB - 1] = 7;
  huge_free(block);
  EXPECT_EQ(huge_purge(true, 4 * kMiB), 4 * kMiB);
  EXPECT_EQ(block->touched_bytes, 6 * kMiB);
  EXPECT_EQ(delta_.dirty(), static_cast<int64_t>(6 * kMiB));
  EXPECT_EQ(block->base[6 * kMiB - 1], 7);
  EXPECT_TRUE(all_zero(block->base + 6 * kMiB, 4 * kMiB));
  EXPECT_EQ(huge_purge(true, ~size_t{0}), 6 * kMiB);
  EXPECT_EQ(delta_.dirty(), 0);
}

TEST_F(Huge, FreedBeyondTheBoundIsPurgedAtOnce) {
  const SavedOptions saved;
  options.dirty_floor = 4;
  HugeBlock* const small = huge_alloc(2 * kMiB, 1);
  HugeBlock* const large = huge_alloc(5 * kMiB, 1);
  const char* const waited = small->base;
  huge_free(small);
  EXPECT_EQ(delta_.dirty(), static_cast<int64_t>(2 * kMiB));
  fill(large, 1);
  huge_free(large);
  clock_after_huge_free(0);
  EXPECT_EQ(delta_.dirty(), static_cast<int64_t>(4 * kMiB)) << "what is over, and no more";
  EXPECT_EQ(huge_at(waited), nullptr) << "first what has waited longer";
  EXPECT_EQ(large->touched_bytes, 4 * kMiB);
  EXPECT_TRUE(all_zero(large->base + 4 * kMiB, kMiB));
}

TEST_F(Huge, ABlockIsReusedForWhatNeedsAboutItsPages) {
  HugeBlock* const larger = huge_alloc(7 * kMiB, 1);
  HugeBlock* const smaller = huge_alloc(5 * kMiB, 1);
  huge_free(smaller);
  huge_free(larger);
  EXPECT_EQ(huge_alloc(5 * kMiB, 1), smaller) << "though the other one was freed last";
  EXPECT_EQ(huge_alloc(6 * kMiB, 1), larger) << "the nearest that there is";
  huge_free(smaller);
  huge_free(larger);
  EXPECT_EQ(huge_alloc(8 * kMiB, 1), larger);
  EXPECT_EQ(huge_alloc(8 * kMiB, 1), smaller) << "a smaller part is better than none";
  huge_free(smaller);
  huge_free(larger);
}

// Of address space there may be much, of what a limit on data or on commit counts little.
TEST_F(Huge, OnlyWhatTheProgramMayUseIsCommitted) {
  HugeBlock* const block = huge_alloc(9 * kMiB, 1);
  EXPECT_EQ(block->reserved_bytes, 16 * kMiB);
  EXPECT_EQ(block->committed_bytes, 9 * kMiB);
  EXPECT_TRUE(huge_resize(block, 12 * kMiB));
  EXPECT_GE(block->committed_bytes, 12 * kMiB);
  EXPECT_LE(block->committed_bytes, 12 * kMiB + 12 * kMiB / 8) << "what grows is likely to grow on";
  memset(block->base + 9 * kMiB, 1, 3 * kMiB);
  huge_free(block);
}

TEST_F(Huge, WithoutMemoryNothingChanges) {
  const int result = in_child([] {
    HugeBlock* const live = huge_alloc(9 * kMiB, 1);
    HugeBlock* const waiting = huge_alloc(9 * kMiB, 1);
    huge_free(waiting);
    const size_t reserved = huge_reserved_bytes(), metadata = metadata_bytes();
    if (!refuse_call(SYS_mprotect, ENOMEM)) return kCannot;
    for (unsigned i = 0; i < 1000; ++i) {
      if (huge_alloc(20 * kMiB, 1) != nullptr || huge_alloc(kMiB, 4 * kMiB) != nullptr) return kFailed;
      if (huge_resize(live, 10 * kMiB) || huge_move(live, 20 * kMiB) != nullptr) return kFailed;
      if (i == 0 && huge_reserved_bytes() > reserved) return kFailed;  // what waited may have been unmapped
    }
    // What was refused may have lain in another window than the rest.
    if (live->usable_bytes != 9 * kMiB || metadata_bytes() - metadata > 4 * kKiB + 2 * sizeof(Window)) return kFailed;
    memset(live->base, 1, 9 * kMiB);
    huge_free(live);
    return huge_alloc(9 * kMiB, 1) == live ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

// 16 TiB took 71 ms to enter in the table, which kept 100 MiB for it.
TEST_F(Huge, OfAGiantOnlyTheFirstChunksAreEntered) {
  if (kEmulated) GTEST_SKIP() << "an emulator keeps a table of every page of it";
  constexpr size_t kTiB = size_t{1} << 40, kGiB = size_t{1} << 30, kEntered = kHugeEntered * kChunkBytes;
  static_assert(kEntered == kGiB);
  const size_t metadata = metadata_bytes();
  HugeBlock* const block = huge_alloc(16 * kTiB, 1);
  if (block == nullptr) GTEST_SKIP() << "no such address space here";
  EXPECT_LE(metadata_bytes(), metadata + 3 * sizeof(Window)) << "two windows, and a descriptor";
  char* const base = block->base;
  EXPECT_EQ(huge_at(base + kEntered - 1), block);
  for (const size_t at : {kEntered, 8 * kGiB, 100 * kGiB, 16 * kTiB - 1}) {
    EXPECT_EQ(chunk_code(base + at), kCodeNone);
    EXPECT_EQ(huge_beyond(base + at), block) << at;
  }
  EXPECT_NE(huge_beyond(base + 16 * kTiB), block);
  EXPECT_NE(huge_beyond(base - 1), block);
  int on_stack = 0;
  EXPECT_EQ(huge_beyond(&on_stack), nullptr);
  EXPECT_EQ(huge_beyond(nullptr), nullptr);
  EXPECT_EQ(huge_beyond(reinterpret_cast<void*>(~uintptr_t{0})), nullptr);
  base[16 * kTiB - 1] = 1;
  EXPECT_TRUE(huge_free(block));
  give_all_back();
  EXPECT_EQ(huge_beyond(base + 100 * kGiB), nullptr);
}

TEST_F(Huge, UnmapFreeGivesAddressSpaceBack) {
  EXPECT_EQ(give_all_back(), 0u);
  HugeBlock* const kept = huge_alloc(2 * kMiB, 1);
  HugeBlock* const freed = huge_alloc(100 * kMiB, 1);
  char* const base = freed->base;
  huge_free(freed);
  EXPECT_EQ(huge_reserved_bytes(), reserved_ + 130 * kMiB);
  EXPECT_EQ(give_all_back(), 100 * kMiB);
  EXPECT_EQ(huge_reserved_bytes(), reserved_ + 2 * kMiB);
  EXPECT_EQ(huge_at(base), nullptr);
  EXPECT_EQ(huge_at(base + 99 * kMiB), nullptr);
  EXPECT_EQ(huge_at(kept->base), kept);
  EXPECT_EQ(give_all_back(), 0u);
  huge_free(kept);
}

TEST_F(Huge, ShortAddressSpaceIsTakenFromWhatWaits) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    HugeBlock* const waiting = huge_alloc(64 * kMiB, 1);
    huge_free(waiting);
    if (!limit_address_space(20 * kMiB)) return kCannot;
    // Fits only once the waiting block has gone, and not as a power of two.
    HugeBlock* const block = huge_alloc(70 * kMiB, 1);
    if (block == nullptr || block->reserved_bytes != 70 * kMiB) return kFailed;
    memset(block->base, 1, 70 * kMiB);
    if (huge_resize(block, 70 * kMiB + 1) || huge_alloc(30 * kMiB, 1) != nullptr) return kFailed;
    return huge_free(block) && huge_alloc(70 * kMiB, 1) != nullptr ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

TEST_F(Huge, ABlockThatIsNoPowerOfTwoServesOnlyWhatItHoldsWhenItCannotBeUnmapped) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    rlimit before;
    getrlimit(RLIMIT_AS, &before);
    if (!limit_address_space(9 * kMiB)) return kCannot;
    HugeBlock* const block = huge_alloc(6 * kMiB, 1);
    if (block == nullptr || block->reserved_bytes != 6 * kMiB) return kCannot;
    setrlimit(RLIMIT_AS, &before);
    if (!refuse_call(SYS_munmap, ENOMEM)) return kCannot;
    if (!huge_free(block) || huge_at(block->base) != block) return kFailed;
    // Of the same power of two, and more than it has.
    HugeBlock* const next = huge_alloc(8 * kMiB, 1);
    if (next == nullptr || next->reserved_bytes < 8 * kMiB) return kFailed;
    memset(next->base, 1, 8 * kMiB);
    // Where it fits it is used again.
    HugeBlock* const again = huge_alloc(4 * kMiB, 1);
    return again == block && live(block) ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits or filters here";
  EXPECT_EQ(result, kPassed);
}

TEST_F(Huge, WhereTheKernelMovesNoPagesTheyAreCopied) {
  const int result = in_child([] {
    HugeBlock* const block = huge_alloc(3 * kMiB, 1);
    fill(block, 6);
    if (!refuse_call(SYS_mremap, ENOMEM)) return kCannot;
    HugeBlock* const moved = huge_move(block, 6 * kMiB);
    if (moved == nullptr || moved == block || !filled(moved, 3 * kMiB, 6) || live(block)) return kFailed;
    return block->touched_bytes >= 3 * kMiB && moved->touched_bytes >= 3 * kMiB ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

TEST_F(Huge, WhereNeitherPagesNorAddressesCanGoNothingChanges) {
  const int result = in_child([] {
    HugeBlock* const block = huge_alloc(3 * kMiB, 1);
    fill(block, 7);
    huge_free(block);
    const PageDelta delta;
    if (!refuse_call(SYS_madvise, EAGAIN) || !refuse_call(SYS_munmap, ENOMEM)) return kCannot;
    if (huge_purge(true, ~size_t{0}) != 0 || delta.dirty() != 0 || delta.resident() != 0) return kFailed;
    return huge_alloc(3 * kMiB, 1) == block && block->touched_bytes == 3 * kMiB ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

TEST_F(Huge, ThreadsShareTheWaitingBlocks) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      std::minstd_rand random(t + 1);
      for (unsigned i = 0; i < rounds(500); ++i) {
        const size_t size = kMiB + 1 + random() % (7 * kMiB);
        HugeBlock* block = huge_alloc(size, 1);
        ASSERT_NE(block, nullptr);
        auto* const words = reinterpret_cast<unsigned*>(block->base);
        words[0] = words[(size - 4) / 4] = t;
        if (i % 8 == 0) block = huge_move(block, size * 2);
        ASSERT_EQ(*reinterpret_cast<unsigned*>(block->base), t);
        ASSERT_EQ(reinterpret_cast<unsigned*>(block->base)[(size - 4) / 4], t);
        ASSERT_TRUE(huge_free(block));
        if (i % 50 == 0) huge_purge(t % 2 == 0, 4 * kMiB);
        if (i % 100 == 99 && t == 0) give_all_back();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
