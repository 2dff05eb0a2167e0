// The usable size tells the truth: every byte of it is the program's, in every bin; and calloc zeroes what was dirty.
#include "support.h"

using namespace folio_test;

namespace {

constexpr size_t kMost = size_t{1} << 20;

// How many objects of a size to look at: enough to fill a folio, within a few MiB.
size_t count_of(size_t size) { return std::clamp<size_t>((size_t{4} << 20) / size, 3, 200); }

TEST(UsableSize, EveryByteIsTheProgramsOwn) {
  std::vector<size_t> sizes = bin_sizes();
  ASSERT_GT(sizes.size(), 20u);
  for (size_t huge : {kMost + 1, 3 * kMost, 9 * kMost}) sizes.push_back(huge);
  for (size_t size : sizes) {
    std::vector<void *> objects;
    for (size_t i = 0; i < count_of(size); i++) {
      void *object = opaque(malloc(size));
      ASSERT_NE(object, nullptr);
      size_t usable = malloc_usable_size(object);
      ASSERT_GE(usable, size);
      EXPECT_EQ(usable, folio_usable_size(object));
      memset(object, static_cast<int>(i + 1), usable);
      objects.push_back(object);
    }
    for (size_t i = 0; i < objects.size(); i++) {
      const unsigned char *byte = static_cast<unsigned char *>(objects[i]);
      ASSERT_EQ(byte[0], (i + 1) & 0xff) << size;
      ASSERT_EQ(memcmp(byte, byte + 1, malloc_usable_size(objects[i]) - 1), 0) << size << ": written by a neighbour";
    }
    for (void *object : objects) free(object);
  }
}

// A large object starts at a random line of its first page, so it may have up to a page more than the least.
TEST(UsableSize, IsWhatGoodSizeSaid) {
  constexpr size_t kLargeFrom = 32833;
  for (size_t size = 0; size <= 2 * kMost; size += size < 20000 ? 1 : 997) {
    void *object = opaque(malloc(size));
    size_t usable = malloc_usable_size(object);
    ASSERT_GE(usable, folio_good_size(size)) << size;
    ASSERT_LE(usable, folio_good_size(size) + (size < kLargeFrom ? 0 : page_bytes())) << size;
    free(object);
  }
}

TEST(UsableSize, OfNullIsZero) {
  EXPECT_EQ(malloc_usable_size(opaque(static_cast<void *>(nullptr))), 0u);
  EXPECT_EQ(folio_usable_size(nullptr), 0u);
}

TEST(GoodSize, IsMonotonousAndStable) {
  size_t before = 0;
  for (size_t size = 0; size <= 10 * kMost; size += size < 40000 ? 1 : 501) {
    size_t good = folio_good_size(size);
    ASSERT_GE(good, size);
    ASSERT_GE(good, before);
    ASSERT_EQ(folio_good_size(good), good) << size;
    before = good;
  }
  EXPECT_EQ(folio_good_size(0), folio_good_size(1));
  for (size_t size : {size_t{PTRDIFF_MAX}, size_t{PTRDIFF_MAX} + 1, SIZE_MAX}) {
    EXPECT_EQ(folio_good_size(size), 0u) << size;
  }
}

// The promise of at most 25 % from bin to bin, and under 10 % on average from 1 to 16 KiB.
TEST(GoodSize, WasteIsBounded) {
  for (size_t size = 64; size <= kMost; size++) {
    // Large objects are whole granules of 16 KiB, or pages, but for their cache line.
    size_t step = size <= 32832 ? size / 4 + 16 : std::max<size_t>(16384, page_bytes());
    ASSERT_LE(folio_good_size(size), size + step) << size;
  }
  double waste = 0;
  constexpr size_t kAverageMost = 16384;
  for (size_t size = 1; size <= kAverageMost; size++) {
    waste += static_cast<double>(folio_good_size(size) - size) / static_cast<double>(folio_good_size(size));
  }
  EXPECT_LT(waste / kAverageMost, 0.10);
}

TEST(Calloc, IsZeroAfterDirtyReuseInEveryBin) {
  std::vector<size_t> sizes = bin_sizes();
  for (size_t huge : {kMost + 1, 3 * kMost, 9 * kMost}) sizes.push_back(huge);
  for (size_t size : sizes) {
    std::vector<void *> objects(count_of(size));
    for (int round = 0; round < 4; round++) {
      for (void *&object : objects) {
        object = opaque(calloc(1, size));
        ASSERT_NE(object, nullptr);
        ASSERT_TRUE(all_zero(object, size)) << size << " in round " << round;
      }
      for (void *object : objects) memset(object, 0xa5, malloc_usable_size(object));
      for (void *object : objects) free(object);
      if (round == 1) folio_collect();
    }
  }
}

TEST(Zalloc, IsZeroAfterDirtyReuse) {
  for (size_t size : bin_sizes()) {
    for (int round = 0; round < 3; round++) {
      void *object = folio_zalloc(size);
      ASSERT_NE(object, nullptr);
      ASSERT_TRUE(all_zero(object, size)) << size;
      memset(object, 0xa5, malloc_usable_size(object));
      free(object);
    }
  }
}

}  // namespace
