#include "core/malloc.h"

#include <errno.h>

#include <random>
#include <set>
#include <thread>

#include "core/realloc.h"
#include "space/huge.h"
#include "unit/child.h"
#include "unit/core/heap.h"

using namespace folio;
using namespace folio_test;

namespace {

class Malloc : public ::testing::Test {
 protected:
  ~Malloc() override { expect_everything_free(); }
};

TEST_F(Malloc, EverySizeAlignedWritableAndApart) {
  std::vector<std::pair<char*, size_t>> objects;
  for (const size_t size : edge_sizes()) {
    auto* const object = static_cast<char*>(alloc(size));
    ASSERT_NE(object, nullptr) << size;
    EXPECT_TRUE(aligned_to(object, size <= 8 ? 8 : 16)) << size;
    const size_t room = usable(object);
    EXPECT_GE(room, size);
    EXPECT_GT(room, 0u);
    fill(object, room, static_cast<unsigned>(size));
    objects.emplace_back(object, size);
  }
  for (const auto& [object, size] : objects) {
    EXPECT_TRUE(filled(object, usable(object), static_cast<unsigned>(size))) << size;
    free_object(object);
  }
}

TEST_F(Malloc, SmallSizesComeFromTheirBins) {
  for (size_t size = 0; size <= kMediumMost; size += size < 20000 || size > 32000 ? 1 : 97) {
    void* const object = alloc(size);
    ASSERT_EQ(chunk_code(object), index(bin_of(size))) << size;
    free_object(object);
  }
}

// What one alignment has freed, another one may get out of the CPU cache. In a child, as its free memory stays for a
// while.
TEST_F(Malloc, LargeObjectsOfAllAlignmentsServeEachOther) {
  const auto turns = [] {
    std::minstd_rand random(7);
    std::pair<char*, size_t> objects[8] = {};
    for (unsigned turn = 0; turn < 3000; ++turn) {
      auto& [object, size] = objects[random() % 8];
      if (object != nullptr) {
        EXPECT_TRUE(filled(object, size, static_cast<unsigned>(size)));
        free_object(object);
      }
      const size_t alignment = size_t{1} << random() % 18;
      size = kMediumMost + 1 + random() % (200 * kKiB);
      const bool zeroed = random() % 4 == 0;
      object = static_cast<char*>(opaque(allocate_aligned(alignment, size, zeroed)));
      EXPECT_TRUE(aligned_to(object, alignment)) << alignment;
      EXPECT_GE(usable(object), size);
      if (zeroed) EXPECT_TRUE(all_zero(object, size));
      fill(object, size, static_cast<unsigned>(size));
    }
    return HasFailure() ? kFailed : kPassed;
  };
  EXPECT_EQ(in_child(turns), kPassed);
}

TEST_F(Malloc, AboveThemObjectsAreLargeAndThenHuge) {
  for (const size_t size : {kMediumMost + 1, 100 * kKiB, 3 * kMiB, kLargeMost}) {
    void* const object = alloc(size);
    EXPECT_EQ(chunk_code(object), kCodeLarge) << size;
    free_object(object);
  }
  for (const size_t size : {kLargeMost + 1, 30 * kMiB}) {
    void* const object = alloc(size);
    EXPECT_EQ(chunk_code(object), kCodeHugeStart) << size;
    free_object(object);
  }
}

TEST_F(Malloc, MoreAlignmentThanABinHasMakesAnObjectLarge) {
  for (size_t alignment = 64 * kKiB; alignment <= kChunkBytes; alignment *= 2) {
    void* const object = opaque(allocate_aligned(alignment, 0, false));
    void* const other = opaque(allocate_aligned(alignment, 0, true));
    EXPECT_EQ(chunk_code(object), kCodeLarge);
    EXPECT_NE(object, other);
    EXPECT_GT(usable(object), 0u);
    free_object(object);
    free_object(other);
  }
}

TEST_F(Malloc, ZeroBytesAreDifferentObjects) {
  std::set<void*> objects;
  for (unsigned i = 0; i < 100; ++i) EXPECT_TRUE(objects.insert(alloc(0)).second);
  for (void* object : objects) free_object(object);
}

TEST_F(Malloc, TheObjectFreedLastComesFirst) {
  void* const a = alloc(100);
  void* const b = alloc(100);
  free_object(a);
  free_object(b);
  EXPECT_EQ(alloc(100), b);
  EXPECT_EQ(alloc(100), a);
  free_object(a);
  free_object(b);
}

TEST_F(Malloc, ManyOfEachBinAreDifferent) {
  for (const size_t size : {size_t{8}, size_t{48}, size_t{500}, size_t{3000}, 20 * kKiB, 200 * kKiB}) {
    std::set<void*> objects;
    const size_t n = std::min<size_t>(20000, 32 * kMiB / size);
    for (size_t i = 0; i < n; ++i) ASSERT_TRUE(objects.insert(alloc(size)).second) << size;
    for (void* object : objects) free_object(object);
  }
}

TEST_F(Malloc, ZeroedIsZeroAlsoWhereMemoryWasUsed) {
  for (unsigned round = 0; round < 3; ++round) {
    for (const size_t size : edge_sizes()) {
      void* const object = opaque(allocate_zeroed(size));
      ASSERT_NE(object, nullptr) << size;
      ASSERT_TRUE(all_zero(object, size)) << size << " in round " << round;
      memset(object, 0xa5, usable(object));
      free_object(object);
    }
    if (round == 1) collect_everything("test");
  }
}

TEST_F(Malloc, ZeroedOfAHugeBlockThatWasLarger) {
  void* object = alloc(12 * kMiB);
  memset(object, 0xa5, 12 * kMiB);
  free_object(object);
  void* const second = opaque(allocate_zeroed(9 * kMiB));
  EXPECT_EQ(second, object) << "its block was reused";
  EXPECT_TRUE(all_zero(second, 9 * kMiB));
  free_object(second);
}

TEST_F(Malloc, AlignedToWhateverIsAsked) {
  for (size_t alignment = 1; alignment <= 64 * kMiB; alignment *= 2) {
    std::vector<void*> objects;
    for (const size_t size :
         {size_t{0}, size_t{1}, size_t{8}, size_t{15}, size_t{16}, size_t{100}, size_t{1024}, size_t{5000}, 30 * kKiB,
          100 * kKiB, 600 * kKiB, kMiB, kMiB + 1, 3 * kMiB, kLargeMost, kLargeMost + 1}) {
      for (const bool zeroed : {false, true}) {
        void* const object = opaque(allocate_aligned(alignment, size, zeroed));
        ASSERT_NE(object, nullptr) << alignment << " " << size;
        ASSERT_TRUE(aligned_to(object, alignment)) << alignment << " " << size;
        ASSERT_TRUE(aligned_to(object, size < 16 ? 8 : 16)) << alignment << " " << size;
        ASSERT_GE(usable(object), size);
        if (zeroed) ASSERT_TRUE(all_zero(object, size)) << alignment << " " << size;
        memset(object, 0xa5, std::min(usable(object), 64 * kKiB));
        objects.push_back(object);
      }
    }
    for (void* object : objects) free_object(object);
  }
}

TEST_F(Malloc, RefusedSizesSetErrno) {
  for (const size_t size : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4096, size_t{PTRDIFF_MAX} + 1, size_t{PTRDIFF_MAX},
                            size_t{1} << 62, size_t{1} << 48, size_t{1} << 47}) {
    errno = 0;
    EXPECT_EQ(alloc(size), nullptr) << size;
    EXPECT_EQ(errno, ENOMEM) << size;
    errno = 0;
    EXPECT_EQ(opaque(allocate_zeroed(size)), nullptr) << size;
    EXPECT_EQ(errno, ENOMEM) << size;
    for (size_t alignment = 1; alignment != 0; alignment *= 2) {
      errno = 0;
      ASSERT_EQ(opaque(allocate_aligned(alignment, size, false)), nullptr) << size << " " << alignment;
      ASSERT_EQ(errno, ENOMEM) << size << " " << alignment;
    }
  }
  for (unsigned shift = 47; shift < 64; ++shift) {
    errno = 0;
    EXPECT_EQ(opaque(allocate_aligned(size_t{1} << shift, 1, false)), nullptr) << shift;
    EXPECT_EQ(errno, ENOMEM) << shift;
  }
}

TEST_F(Malloc, SuccessLeavesErrnoAlone) {
  errno = 1234;
  for (const size_t size : edge_sizes()) free_object(alloc(size));
  EXPECT_EQ(errno, 1234);
}

TEST(MallocShort, ObjectsOfLargerBinsServeWhenThereIsNoMoreAddressSpace) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    // One chunk of 1 KiB objects with room, then no address space, until the small bins' own chunks are full.
    void* const large = alloc(1000);
    if (!limit_address_space(kMiB)) return kCannot;
    while (alloc(kMediumMost) != nullptr) {
    }
    void* const object = alloc(600);
    if (object == nullptr || chunk_code(object) == index(bin_of(600))) return kFailed;
    if (usable(object) < 600 || !aligned_to(object, 16)) return kFailed;
    memset(object, 1, 600);
    free_object(object);
    free_object(large);
    // An alignment that the larger bin does not have is refused instead of ignored.
    errno = 0;
    void* const aligned = allocate_aligned(512, 512, false);
    if (aligned != nullptr && !aligned_to(aligned, 512)) return kFailed;
    return aligned != nullptr || errno == ENOMEM ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

TEST(MallocShort, OutOfMemoryIsReportedAndPasses) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    if (!limit_address_space(64 * kMiB)) return kCannot;
    static void* held[10000];
    unsigned n = 0;
    for (; n < std::size(held) && (held[n] = alloc(900 * kKiB)) != nullptr; ++n) fill(held[n], 4096, n);
    if (n == std::size(held) || n < 30 || errno != ENOMEM) return kFailed;
    for (unsigned i = 0; i < n; ++i) {
      if (!filled(held[i], 4096, i)) return kFailed;
    }
    free_object(held[0]);
    if (alloc(900 * kKiB) == nullptr) return kFailed;
    rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_AS, &limit);
    for (unsigned i = 0; i < 100; ++i) {
      if (alloc(900 * kKiB) == nullptr) return kFailed;
    }
    return kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

// What was freed in random order leaves objects of each chunk in the caches. Another size finds these chunks all the
// same, after its first own.
TEST(MallocShort, CachesDoNotKeepChunksFromOtherSizes) {
  const int result = in_child([] {
    options.housekeeper = kHousekeeperOff;
    options.decay = 3600000;
    std::minstd_rand random(1);
    const auto fill = [&](size_t size) {
      std::vector<void*> objects;
      for (size_t bytes = 0; bytes < 24 * kMiB; bytes += size) {
        objects.push_back(alloc(size));
        *static_cast<char*>(objects.back()) = 1;
      }
      return objects;
    };
    fill(3008);  // stays live
    std::vector<void*> objects = fill(448);
    std::shuffle(objects.begin(), objects.end(), random);
    for (void* object : objects) free_object(object);
    // Where new pages come, as many others go, or stay beside them.
    const auto touched = [] { return page_counts.resident.get() + static_cast<int64_t>(page_counts.purged.get()); };
    const int64_t before = touched();
    fill(832);
    return touched() - before < static_cast<int64_t>(6 * kMiB) ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST(MallocShort, WaitingHugeBlocksMakeRoomForChunksAndFields) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  // For chunks, and for a field.
  for (const size_t size : {30 * kKiB, 900 * kKiB}) {
    const int result = in_child([size] {
      void* const object = alloc(64 * kMiB);
      if (!limit_address_space(kMiB)) return kCannot;
      while (alloc(size) != nullptr) {  // what other tests have left
      }
      free_object(object);
      size_t bytes = 0;
      while (bytes < 200 * kMiB && alloc(size) != nullptr) bytes += size;
      return bytes >= 50 * kMiB && bytes < 200 * kMiB ? kPassed : kFailed;
    });
    if (result == kCannot) GTEST_SKIP() << "no limits here";
    EXPECT_EQ(result, kPassed) << size;
  }
}

TEST(MallocShort, WhatLargeObjectsLeftServesOthers) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    free_object(alloc(100));
    if (!limit_address_space(100 * kMiB)) return kCannot;
    static void* held[300000];
    unsigned n = 0;
    for (const size_t size : {kLargeMost, 900 * kKiB, 40 * kKiB}) {
      while ((held[n] = alloc(size)) != nullptr) ++n;
    }
    while (n != 0) free_object(held[--n]);
    // A huge one in their field; it grows and shrinks like any other.
    void* object = opaque(allocate_zeroed(20 * kMiB));
    if (object == nullptr || chunk_code(object) != kCodeLarge || !all_zero(object, 20 * kMiB)) return kFailed;
    fill(object, 20 * kMiB, 1);
    if (usable(object) < 20 * kMiB || reallocate(object, 1, 15 * kMiB, "realloc") != object) return kFailed;
    object = reallocate(object, 1, 3 * kMiB, "realloc");
    if (!filled(object, 3 * kMiB, 1)) return kFailed;
    free_object(object);
    // Small ones in chunks out of it, more than the first region had left.
    size_t bytes = 0;
    for (size_t size : {100, 3000, 20000}) {
      for (unsigned i = 0; i < 20 * kMiB / size; ++i, ++n) {
        if ((held[n] = alloc(size)) == nullptr) return kFailed;
        memset(held[n], static_cast<int>(size), size);
        bytes += size;
      }
    }
    for (const BinId bin : all_bins()) {
      if (!check_bin(process_store, bin)) return kFailed;
    }
    return large_check(process_fields) && bytes > 59 * kMiB ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

TEST(MallocThreads, ObjectsPassBetweenThreads) {
  constexpr unsigned kThreads = 4, kSlots = 256;
  static Atomic<void*> mailbox[kSlots];
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      std::minstd_rand random(t + 1);
      for (unsigned i = 0; i < rounds(100000); ++i) {
        const size_t size = 16 + random() % (i % 100 == 0 ? 200000 : i % 10 == 0 ? 5000 : 300);
        auto* object = static_cast<size_t*>(alloc(size));
        object[0] = size;
        object[1] = ~size;
        auto* other = static_cast<size_t*>(mailbox[random() % kSlots].exchange(object, order::acq_rel));
        if (other == nullptr) continue;
        ASSERT_EQ(other[0], ~other[1]) << "somebody else wrote to it";
        free_object(other);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Atomic<void*>& slot : mailbox) free_object(slot.exchange(nullptr, order::acquire));
  expect_everything_free();
}

}  // namespace
