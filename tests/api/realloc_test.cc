// realloc between all kinds of objects, in place and moving, and its relatives expand and rezalloc.
#include <sys/resource.h>

#include "support.h"

using namespace folio_test;

namespace {

// One byte a page is enough for large objects; a copy that is off by any amount still shows.
void stamp(void *object, size_t from, size_t to, unsigned seed) {
  unsigned char *byte = static_cast<unsigned char *>(object);
  for (size_t i = from; i < to; i += i < 10000 ? 1 : 509) byte[i] = pattern_byte(i, seed);
}

size_t first_bad_stamp(const void *object, size_t to, unsigned seed) {
  const unsigned char *byte = static_cast<const unsigned char *>(object);
  for (size_t i = 0; i < to; i += i < 10000 ? 1 : 509) {
    if (byte[i] != pattern_byte(i, seed)) return i;
  }
  return to;
}

void grow_by_steps(size_t first, size_t last, double factor) {
  void *object = opaque(malloc(first));
  ASSERT_NE(object, nullptr);
  stamp(object, 0, first, 7);
  for (size_t size = first; size < last;) {
    size_t next = static_cast<size_t>(static_cast<double>(size) * factor) + 1;
    object = realloc(object, next);
    ASSERT_NE(object, nullptr) << next;
    ASSERT_EQ(first_bad_stamp(object, size, 7), size) << size << " to " << next;
    ASSERT_GE(malloc_usable_size(object), next);
    stamp(object, 0, next, 7);
    size = next;
  }
  free(object);
}

TEST(Realloc, GrowsFromOneByteToManyMiB) {
  grow_by_steps(1, 40 * kMiB, 1.3);
  grow_by_steps(1, 40 * kMiB, 2.0);
}

TEST(Realloc, GrowsHugeObjectsPastPowersOfTwo) { grow_by_steps(kMiB, 300 * kMiB, 1.17); }

// Several grow in turn, so that none can always be extended in place.
TEST(Realloc, HugeObjectsGrowBesideEachOther) {
  constexpr size_t kCount = 6;
  void *objects[kCount];
  for (size_t i = 0; i < kCount; i++) {
    objects[i] = opaque(malloc(kMiB));
    stamp(objects[i], 0, kMiB, static_cast<unsigned>(i));
  }
  size_t size = kMiB;
  while (size < 40 * kMiB) {
    size_t next = size * 3 / 2 + 12345;
    for (size_t i = 0; i < kCount; i++) {
      objects[i] = realloc(objects[i], next);
      ASSERT_NE(objects[i], nullptr);
      stamp(objects[i], 0, next, static_cast<unsigned>(i));
    }
    for (size_t i = 0; i < kCount; i++) {
      ASSERT_EQ(first_bad_stamp(objects[i], next, static_cast<unsigned>(i)), next);
    }
    size = next;
  }
  for (void *object : objects) free(object);
}

TEST(Realloc, ShrinksWithoutLoss) {
  for (size_t from : {300 * kMiB, 17 * kMiB, 3 * kMiB, kMiB, size_t{100000}, size_t{20000}, size_t{4000}}) {
    void *object = opaque(malloc(from));
    ASSERT_NE(object, nullptr);
    stamp(object, 0, from, 11);
    for (size_t size = from * 2 / 3; size > 0; size = size * 2 / 3) {
      object = realloc(object, size);
      ASSERT_NE(object, nullptr);
      ASSERT_EQ(first_bad_stamp(object, size, 11), size) << from;
    }
    free(object);
  }
}

// What a huge object gave up by shrinking is not kept as live memory.
TEST(Realloc, ShrinkingGivesMemoryBack) {
  void *object = opaque(malloc(200 * kMiB));
  ASSERT_NE(object, nullptr);
  stamp(object, 0, 200 * kMiB, 1);
  folio_stats stats = {};
  stats.struct_size = sizeof stats;
  ASSERT_TRUE(folio_stats_get(&stats));
  size_t before = stats.live;
  object = realloc(object, 10 * kMiB);
  ASSERT_NE(object, nullptr);
  ASSERT_TRUE(folio_stats_get(&stats));
  EXPECT_LT(stats.live + 180 * kMiB, before);
  EXPECT_EQ(first_bad_stamp(object, 10 * kMiB, 1), 10 * kMiB);
  free(object);
}

TEST(Realloc, BetweenAnyTwoSizes) {
  std::vector<size_t> sizes = {1, 8, 9, 24, 65, 300, 1025, 5000, 16000, 17000, 70000, 300000, kMiB, kMiB + 1, 5 * kMiB};
  for (size_t from : sizes) {
    for (size_t to : sizes) {
      void *object = opaque(malloc(from));
      fill(object, from, 13);
      object = realloc(object, to);
      ASSERT_NE(object, nullptr);
      size_t kept = std::min(from, to);
      ASSERT_EQ(first_difference(object, kept, 13), kept) << from << " to " << to;
      memset(object, 1, malloc_usable_size(object));
      free(object);
    }
  }
}

TEST(Realloc, OfAlignedObjects) {
  for (size_t alignment = 16; alignment <= 8 * kMiB; alignment *= 4) {
    for (size_t to : {size_t{10}, size_t{5000}, 3 * kMiB, 20 * kMiB}) {
      void *object = opaque(aligned_alloc(alignment, 5000));
      ASSERT_NE(object, nullptr);
      fill(object, 5000, 17);
      object = realloc(object, to);
      ASSERT_NE(object, nullptr);
      size_t kept = std::min<size_t>(5000, to);
      ASSERT_EQ(first_difference(object, kept, 17), kept) << alignment << " to " << to;
      free(object);
    }
  }
}

// Growth within the usable size is free.
TEST(Realloc, StaysWithinTheUsableSize) {
  for (size_t size : bin_sizes()) {
    void *object = opaque(malloc(size));
    uintptr_t address = reinterpret_cast<uintptr_t>(object);
    void *grown = realloc(object, folio_good_size(size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(grown), address) << size;
    free(grown);
  }
}

// A huge object that was grown and moved by pages must not keep physical memory twice.
TEST(Realloc, GrowthCostsNoMoreThanTheObject) {
  void *object = opaque(malloc(64 * kMiB));
  ASSERT_NE(object, nullptr);
  memset(object, 1, 64 * kMiB);
  object = realloc(object, 200 * kMiB);
  ASSERT_NE(object, nullptr);
  memset(object, 1, 200 * kMiB);
  struct rusage usage;
  ASSERT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  folio_stats stats = {};
  stats.struct_size = sizeof stats;
  ASSERT_TRUE(folio_stats_get(&stats));
  EXPECT_GE(stats.huge_live, 200 * kMiB);
  EXPECT_LT(stats.live, 300 * kMiB);
  free(object);
}

TEST(Expand, TellsTheTruth) {
  for (size_t size : {1, 20, 100, 3000, 50000, 900000, 3000000, 100000000}) {
    void *object = opaque(malloc(size));
    ASSERT_NE(object, nullptr);
    stamp(object, 0, size, 19);
    EXPECT_TRUE(folio_expand(object, size));
    EXPECT_TRUE(folio_expand(object, malloc_usable_size(object)));
    EXPECT_TRUE(folio_expand(object, 0));
    for (size_t more : {size + 1, size * 2, size * 10}) {
      size_t before = malloc_usable_size(object);
      bool can = folio_expand(object, more);
      size_t after = malloc_usable_size(object);
      if (can) {
        EXPECT_GE(after, more);
        memset(static_cast<char *>(object) + size, 1, after - size);
      } else {
        EXPECT_EQ(after, before) << "as it was";
        EXPECT_LT(before, more);
      }
    }
    for (size_t refused : refused_sizes()) EXPECT_FALSE(folio_expand(object, refused));
    EXPECT_EQ(first_bad_stamp(object, size, 19), size);
    free(object);
  }
}

TEST(Rezalloc, ZeroesWhatIsNew) {
  for (size_t from : {1, 100, 5000, 100000, 3000000}) {
    for (size_t to : {2, 500, 20000, 900000, 30000000}) {
      // Dirty the neighbourhood first, so that zero is no accident.
      void *dirty = opaque(malloc(to));
      memset(dirty, 0xff, malloc_usable_size(dirty));
      free(dirty);
      void *object = opaque(malloc(from));
      memset(object, 0xee, malloc_usable_size(object));
      fill(object, from, 23);
      object = folio_rezalloc(object, from, to);
      ASSERT_NE(object, nullptr);
      size_t kept = std::min(from, to);
      EXPECT_EQ(first_difference(object, kept, 23), kept);
      EXPECT_TRUE(all_zero(static_cast<char *>(object) + kept, to - kept)) << from << " to " << to;
      free(object);
    }
  }
  void *object = folio_rezalloc(nullptr, 0, 100);
  ASSERT_NE(object, nullptr);
  EXPECT_TRUE(all_zero(object, 100));
  free(object);
}

}  // namespace
