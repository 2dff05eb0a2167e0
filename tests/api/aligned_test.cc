// aligned_alloc, posix_memalign, memalign, valloc, pvalloc and the aligned folio_ functions.
#include "support.h"

using namespace folio_test;

namespace {

constexpr size_t kMostAlignment = size_t{64} << 20;

// Sizes that matter for an alignment: none, tiny, odd ones, and both sides of the alignment itself.
std::vector<size_t> sizes_for(size_t alignment) {
  std::vector<size_t> sizes = {0, 1, 7, 8, 15, 16, 17, 100, 4095, 4097};
  for (size_t size : {alignment - 1, alignment, alignment + 1, 2 * alignment}) sizes.push_back(size);
  return sizes;
}

void check_object(void *object, size_t alignment, size_t size) {
  ASSERT_NE(object, nullptr) << alignment << " " << size;
  EXPECT_TRUE(aligned_to(object, alignment)) << alignment << " " << size;
  EXPECT_GE(malloc_usable_size(object), size);
  folio_place place;
  ASSERT_TRUE(folio_locate(object, &place));
  EXPECT_EQ(place.base, object) << alignment << " " << size;
  if (size > 0) {
    static_cast<char *>(object)[0] = 1;
    static_cast<char *>(object)[size - 1] = 1;
  }
}

TEST(AlignedAlloc, EveryPowerOfTwo) {
  for (size_t alignment = 1; alignment <= kMostAlignment; alignment *= 2) {
    for (size_t size : sizes_for(alignment)) {
      void *objects[3];
      for (void *&object : objects) {
        object = opaque(aligned_alloc(alignment, size));
        check_object(object, alignment, size);
      }
      EXPECT_NE(objects[0], objects[1]);
      EXPECT_NE(objects[1], objects[2]);
      for (void *object : objects) free(object);
    }
  }
}

TEST(AlignedAlloc, NoPowerOfTwoIsEinval) {
  for (size_t alignment : {size_t{0}, size_t{3}, size_t{24}, size_t{4095}, size_t{4097}, SIZE_MAX, SIZE_MAX - 15}) {
    EXPECT_TRUE(refused(EINVAL, [&] { return aligned_alloc(opaque(alignment), 64); })) << alignment;
    EXPECT_TRUE(refused(EINVAL, [&] { return folio_aligned_alloc(opaque(alignment), 64); })) << alignment;
    EXPECT_TRUE(refused(EINVAL, [&] { return folio_aligned_zalloc(opaque(alignment), 64); })) << alignment;
  }
}

TEST(AlignedAlloc, RefusedSizesSetEnomem) {
  for (size_t alignment = 1; alignment <= kMostAlignment; alignment *= 8) {
    for (size_t size : refused_sizes()) {
      EXPECT_TRUE(refused(ENOMEM, [&] { return aligned_alloc(alignment, opaque(size)); })) << alignment << " " << size;
      EXPECT_TRUE(refused(ENOMEM, [&] { return memalign(alignment, opaque(size)); })) << alignment << " " << size;
      EXPECT_TRUE(refused(ENOMEM, [&] { return folio_aligned_zalloc(alignment, opaque(size)); }))
          << alignment << " " << size;
    }
  }
}

// Address space may or may not have room for these; whatever comes must be aligned or ENOMEM.
TEST(AlignedAlloc, EnormousAlignments) {
  for (unsigned shift = 27; shift < 64; shift++) {
    for (size_t size : {size_t{1}, size_t{5000}, size_t{3} << 20}) {
      errno = 0;
      void *object = opaque(aligned_alloc(size_t{1} << shift, size));
      if (object == nullptr) {
        EXPECT_EQ(errno, ENOMEM) << shift;
        continue;
      }
      EXPECT_TRUE(aligned_to(object, size_t{1} << shift));
      free(object);
    }
  }
}

TEST(PosixMemalign, EveryPowerOfTwo) {
  for (size_t alignment = sizeof(void *); alignment <= kMostAlignment; alignment *= 2) {
    for (size_t size : sizes_for(alignment)) {
      void *object = nullptr;
      ASSERT_EQ(posix_memalign(&object, alignment, size), 0);
      check_object(object, alignment, size);
      free(object);
    }
  }
}

// It returns its error; errno and *out stay.
TEST(PosixMemalign, Refusals) {
  int mark = 0;
  for (size_t alignment : {0, 1, 2, 4, 3, 12, 24, 48, 4095}) {
    void *object = &mark;
    errno = 4711;
    EXPECT_EQ(posix_memalign(&object, opaque(alignment), 64), EINVAL) << alignment;
    EXPECT_EQ(folio_posix_memalign(&object, opaque(alignment), 64), EINVAL) << alignment;
    EXPECT_EQ(errno, 4711);
    EXPECT_EQ(object, &mark);
  }
  for (size_t alignment = sizeof(void *); alignment <= kMostAlignment; alignment *= 8) {
    for (size_t size : refused_sizes()) {
      void *object = &mark;
      errno = 4712;
      EXPECT_EQ(posix_memalign(&object, alignment, opaque(size)), ENOMEM) << alignment << " " << size;
      EXPECT_EQ(folio_posix_memalign(&object, alignment, opaque(size)), ENOMEM) << alignment << " " << size;
      EXPECT_EQ(errno, 4712);
      EXPECT_EQ(object, &mark);
    }
  }
}

TEST(PosixMemalign, KeepsErrnoOnSuccess) {
  void *object = nullptr;
  errno = 4711;
  ASSERT_EQ(posix_memalign(&object, 4096, size_t{5} << 20), 0);
  EXPECT_EQ(errno, 4711);
  free(object);
}

TEST(Memalign, RoundsTheAlignmentUp) {
  const size_t pairs[][2] = {{0, 8},   {1, 8},     {3, 4},       {5, 8},      {24, 32},
                             {33, 64}, {100, 128}, {4095, 4096}, {5000, 8192}};
  for (const auto &[given, expected] : pairs) {
    void *objects[20];
    for (void *&object : objects) {
      object = opaque(memalign(given, 40));
      ASSERT_NE(object, nullptr) << given;
      EXPECT_TRUE(aligned_to(object, expected)) << given;
    }
    for (void *object : objects) free(object);
  }
}

TEST(Memalign, AlignmentThatCannotBeRoundedUp) {
  for (size_t alignment : {SIZE_MAX, SIZE_MAX - 100, (SIZE_MAX / 2 + 1) + 1}) {
    EXPECT_TRUE(refused(EINVAL, [&] { return memalign(opaque(alignment), 64); }));
  }
}

TEST(Valloc, IsPageAligned) {
  for (size_t size : {0, 1, 4095, 4096, 4097, 100000, 5000000}) {
    void *object = opaque(valloc(size));
    check_object(object, page_bytes(), size);
    free(object);
  }
  for (size_t size : refused_sizes()) {
    EXPECT_TRUE(refused(ENOMEM, [&] { return valloc(opaque(size)); })) << size;
  }
}

TEST(Pvalloc, RoundsUpToWholePages) {
  size_t page = page_bytes();
  for (size_t size : {size_t{1}, size_t{100}, page - 1, page, page + 1, 10 * page + 1, size_t{5000000}}) {
    void *object = opaque(pvalloc(size));
    size_t rounded = (size + page - 1) / page * page;
    check_object(object, page, rounded);
    memset(object, 1, rounded);
    free(object);
  }
  void *empty = opaque(pvalloc(opaque(size_t{0})));
  check_object(empty, page, 0);
  free(empty);
  for (size_t size : refused_sizes()) {
    EXPECT_TRUE(refused(ENOMEM, [&] { return pvalloc(opaque(size)); })) << size;
  }
}

// Aligned objects of many sizes live beside each other without overlap.
TEST(AlignedAlloc, ObjectsDoNotOverlap) {
  struct Held {
    void *object;
    size_t bytes;
  };
  std::vector<Held> held;
  for (int round = 0; round < 8; round++) {
    for (size_t alignment = 8; alignment <= size_t{4} << 20; alignment *= 2) {
      for (size_t bytes : {size_t{1}, size_t{24}, alignment / 2 + 1, alignment + 8}) {
        if (bytes > size_t{1} << 20 && round > 1) continue;
        void *object = opaque(aligned_alloc(alignment, bytes));
        ASSERT_NE(object, nullptr);
        held.push_back({object, bytes});
        fill(object, bytes, static_cast<unsigned>(held.size()));
      }
    }
  }
  for (size_t i = 0; i < held.size(); i++) {
    ASSERT_EQ(first_difference(held[i].object, held[i].bytes, static_cast<unsigned>(i + 1)), held[i].bytes);
  }
  for (const Held &one : held) free(one.object);
}

TEST(AlignedZalloc, IsZeroAfterDirtyReuse) {
  for (size_t alignment = 1; alignment <= size_t{4} << 20; alignment *= 4) {
    for (size_t size : {size_t{1}, size_t{100}, size_t{5000}, 2 * alignment}) {
      for (int round = 0; round < 4; round++) {
        void *object = folio_aligned_zalloc(alignment, size);
        check_object(object, alignment, size);
        // check_object wrote the first and last byte.
        static_cast<char *>(object)[0] = static_cast<char *>(object)[size - 1] = 0;
        ASSERT_TRUE(all_zero(object, size)) << alignment << " " << size;
        memset(object, 0xff, malloc_usable_size(object));
        free(object);
      }
    }
  }
}

TEST(AlignedRealloc, KeepsAlignmentAndContents) {
  for (size_t alignment = 1; alignment <= size_t{4} << 20; alignment *= 4) {
    void *object = folio_aligned_realloc(nullptr, alignment, 10);
    ASSERT_NE(object, nullptr);
    size_t filled = 10;
    fill(object, filled, 9);
    for (size_t size = 20; size < size_t{6} << 20; size = size * 5 / 2) {
      object = folio_aligned_realloc(object, alignment, size);
      ASSERT_NE(object, nullptr);
      ASSERT_TRUE(aligned_to(object, alignment)) << alignment << " " << size;
      ASSERT_EQ(first_difference(object, filled, 9), filled) << alignment << " " << size;
      fill(object, size, 9);
      filled = size;
    }
    for (size_t size = filled / 3; size > 10; size /= 3) {
      object = folio_aligned_realloc(object, alignment, size);
      ASSERT_NE(object, nullptr);
      ASSERT_TRUE(aligned_to(object, alignment)) << alignment << " " << size;
      ASSERT_EQ(first_difference(object, size, 9), size) << alignment << " " << size;
    }
    free(object);
  }
}

// An object that malloc gave becomes aligned, also when it need not grow.
TEST(AlignedRealloc, AlignsWhatWasNot) {
  for (size_t size : {40, 3000, 50000, 3000000}) {
    std::vector<void *> objects;
    for (int i = 0; i < 20; i++) {
      objects.push_back(opaque(malloc(size)));
      fill(objects.back(), size, 2);
    }
    for (void *&object : objects) {
      object = folio_aligned_realloc(object, size_t{1} << 16, size);
      ASSERT_NE(object, nullptr);
      EXPECT_TRUE(aligned_to(object, size_t{1} << 16));
      EXPECT_EQ(first_difference(object, size, 2), size);
    }
    for (void *object : objects) free(object);
  }
}

TEST(AlignedRealloc, RefusalsKeepTheObject) {
  void *object = opaque(malloc(100));
  fill(object, 100, 4);
  EXPECT_TRUE(refused(EINVAL, [&] { return folio_aligned_realloc(object, opaque(size_t{24}), 200); }));
  for (size_t size : refused_sizes()) {
    EXPECT_TRUE(refused(ENOMEM, [&] { return folio_aligned_realloc(object, 64, opaque(size)); })) << size;
  }
  EXPECT_EQ(first_difference(object, 100, 4), 100u);
  free(object);
}

}  // namespace
