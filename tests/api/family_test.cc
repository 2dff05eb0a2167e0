// malloc, calloc, realloc, reallocarray, free and their C23 forms: what ISO C, POSIX and glibc promise, at the edges.
#include "support.h"

using namespace folio_test;

extern "C" {
void free_sized(void *object, size_t size);  // C23; glibc 2.36 has no declarations yet
void free_aligned_sized(void *object, size_t alignment, size_t size);
}

namespace {

TEST(Malloc, IsFolios) {
  for (size_t size : {1, 100, 5000, 100000, 5000000}) {
    void *object = opaque(malloc(size));
    EXPECT_TRUE(folio_is_ours(object));
    free(object);
  }
}

TEST(Malloc, ZeroSizeIsUniqueAndCanBeFreed) {
  std::vector<void *> objects;
  for (int i = 0; i < 1000; i++) objects.push_back(opaque(malloc(opaque(size_t{0}))));
  std::vector<void *> sorted = objects;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_NE(sorted.front(), nullptr);
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
  for (void *object : objects) {
    EXPECT_GE(malloc_usable_size(object), 1u);
    free(object);
  }
}

TEST(Malloc, AlignmentOfEverySize) {
  for (size_t size = 0; size < 5000; size++) {
    void *object = opaque(malloc(size));
    EXPECT_TRUE(aligned_to(object, size >= 16 ? 16 : 8)) << size;
    free(object);
  }
  for (size_t size = 5000; size < 8000000; size += size / 7) {
    void *object = opaque(malloc(size));
    EXPECT_TRUE(aligned_to(object, 16)) << size;
    free(object);
  }
}

TEST(Malloc, RefusedSizesSetEnomem) {
  for (size_t size : refused_sizes()) {
    EXPECT_TRUE(refused(ENOMEM, [&] { return malloc(opaque(size)); })) << size;
    EXPECT_TRUE(refused(ENOMEM, [&] { return folio_malloc(opaque(size)); })) << size;
  }
}

TEST(Calloc, RefusedSizesSetEnomem) {
  for (size_t size : refused_sizes()) {
    EXPECT_TRUE(refused(ENOMEM, [&] { return calloc(1, opaque(size)); })) << size;
    EXPECT_TRUE(refused(ENOMEM, [&] { return calloc(opaque(size), 1); })) << size;
    EXPECT_TRUE(refused(ENOMEM, [&] { return folio_calloc(opaque(size), 1); })) << size;
  }
}

// Products that overflow, among them such that leave a small or zero remainder.
const size_t kOverflowing[][2] = {
    {SIZE_MAX, 2},
    {2, SIZE_MAX},
    {SIZE_MAX / 2 + 1, 2},
    {size_t{1} << 32, size_t{1} << 32},
    {(size_t{1} << 32) + 1, size_t{1} << 32},
    {SIZE_MAX / 3, 4},
    {SIZE_MAX, SIZE_MAX},
    {SIZE_MAX / 8 + 2, 8},
};

TEST(Calloc, OverflowingProductsSetEnomem) {
  for (const auto &product : kOverflowing) {
    const size_t count = product[0], size = product[1];
    EXPECT_TRUE(refused(ENOMEM, [&] { return calloc(opaque(count), opaque(size)); })) << count << " * " << size;
  }
}

TEST(Calloc, ZeroCountOrSizeIsUnique) {
  void *a = opaque(calloc(0, 10));
  void *b = opaque(calloc(10, 0));
  void *c = opaque(calloc(0, opaque(SIZE_MAX)));
  EXPECT_NE(a, nullptr);
  EXPECT_NE(b, nullptr);
  EXPECT_NE(c, nullptr);
  EXPECT_NE(a, b);
  EXPECT_NE(b, c);
  free(a);
  free(b);
  free(c);
}

TEST(Reallocarray, OverflowingProductsKeepTheObject) {
  for (const auto &product : kOverflowing) {
    const size_t count = product[0], size = product[1];
    void *object = opaque(malloc(100));
    fill(object, 100, 3);
    EXPECT_TRUE(refused(ENOMEM, [&] { return reallocarray(opaque(object), opaque(count), opaque(size)); }))
        << count << " * " << size;
    EXPECT_TRUE(refused(ENOMEM, [&] { return folio_reallocarray(opaque(object), opaque(count), opaque(size)); }))
        << count << " * " << size;
    EXPECT_EQ(first_difference(object, 100, 3), 100u);
    free(object);
  }
}

TEST(Reallocarray, Grows) {
  char *object = static_cast<char *>(reallocarray(nullptr, 10, 10));
  ASSERT_NE(object, nullptr);
  fill(object, 100, 1);
  object = static_cast<char *>(reallocarray(object, 1000, 10));
  ASSERT_NE(object, nullptr);
  EXPECT_EQ(first_difference(object, 100, 1), 100u);
  EXPECT_GE(malloc_usable_size(object), 10000u);
  EXPECT_EQ(reallocarray(object, 0, 10), nullptr);
}

TEST(Realloc, RefusedSizesKeepTheObject) {
  for (size_t bytes : {1, 100, 40000, 3000000}) {
    void *object = opaque(malloc(bytes));
    ASSERT_NE(object, nullptr);
    fill(object, bytes, 5);
    for (size_t size : refused_sizes()) {
      EXPECT_TRUE(refused(ENOMEM, [&] { return realloc(opaque(object), opaque(size)); })) << size;
      EXPECT_TRUE(refused(ENOMEM, [&] { return folio_realloc(opaque(object), opaque(size)); })) << size;
    }
    EXPECT_EQ(first_difference(object, bytes, 5), bytes);
    free(object);
  }
}

TEST(Realloc, OfNullIsMalloc) {
  void *object = opaque(realloc(nullptr, 50));
  EXPECT_NE(object, nullptr);
  free(object);
  void *empty = opaque(realloc(nullptr, 0));
  EXPECT_NE(empty, nullptr);
  free(empty);
  for (size_t size : refused_sizes()) {
    EXPECT_TRUE(refused(ENOMEM, [&] { return realloc(nullptr, opaque(size)); })) << size;
  }
}

TEST(Realloc, ToZeroFrees) {
  folio_stats stats = {};
  for (size_t bytes : {8, 100, 40000, 3000000}) {
    void *object = opaque(malloc(bytes));
    ASSERT_NE(object, nullptr);
    fill(object, bytes, 1);
    stats.struct_size = sizeof stats;
    ASSERT_TRUE(folio_stats_get(&stats));
    size_t live = stats.live;
    errno = 0;
    EXPECT_EQ(realloc(opaque(object), opaque(size_t{0})), nullptr);
    EXPECT_EQ(errno, 0);
    ASSERT_TRUE(folio_stats_get(&stats));
    EXPECT_LE(stats.live + bytes, live) << bytes;
  }
}

TEST(Free, NullDoesNothing) {
  free(opaque(static_cast<void *>(nullptr)));
  folio_free(opaque(static_cast<void *>(nullptr)));
  free_sized(nullptr, 10);
  free_aligned_sized(nullptr, 64, 10);
  folio_free_sized(nullptr, 10);
  folio_free_aligned_sized(nullptr, 64, 10);
}

TEST(Free, KeepsErrno) {
  // Many of each size, so that magazines overflow, pages are purged and huge objects are given back meanwhile.
  std::vector<void *> objects;
  for (size_t size : {8, 64, 1000, 16000, 100000}) {
    for (int i = 0; i < 400; i++) objects.push_back(opaque(malloc(size)));
  }
  for (int i = 0; i < 10; i++) objects.push_back(opaque(malloc(size_t{9} << 20)));
  for (void *object : objects) {
    memset(object, 1, 8);
    errno = 4711;
    free(object);
    ASSERT_EQ(errno, 4711);
  }
  errno = 4712;
  folio_collect();
  EXPECT_EQ(errno, 4712);
}

TEST(FreeSized, AcceptsEverySizeThatLedToTheObject) {
  for (size_t size = 0; size < 3000; size++) {
    free_sized(opaque(malloc(size)), size);
    folio_free_sized(opaque(folio_malloc(size)), size);
    void *object = opaque(malloc(size));
    folio_free_sized(object, malloc_usable_size(object));
  }
  for (size_t size = 3000; size < 9000000; size += size / 5) {
    free_sized(opaque(malloc(size)), size);
    folio_free_sized(opaque(calloc(1, size)), size);
    free_sized(realloc(opaque(malloc(size / 2)), size), size);
  }
}

TEST(FreeAlignedSized, AcceptsWhatAlignedAllocGave) {
  for (size_t alignment = 1; alignment <= size_t{4} << 20; alignment *= 2) {
    for (size_t size : {size_t{0}, size_t{1}, size_t{100}, alignment, 3 * alignment}) {
      free_aligned_sized(folio_aligned_alloc(alignment, size), alignment, size);
      folio_free_aligned_sized(opaque(aligned_alloc(alignment, size)), alignment, size);
    }
  }
}

// 64 MiB of objects in a random order of sizes, all live at once, then freed in another order.
TEST(Malloc, ObjectsDoNotOverlap) {
  struct Held {
    void *object;
    size_t bytes;
  };
  std::vector<Held> held;
  uint64_t state = 88172645463325252u;
  auto random = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  size_t total = 0;
  while (total < size_t{64} << 20) {
    size_t bytes = random() % (size_t{1} << (random() % 18));
    held.push_back({opaque(malloc(bytes)), bytes});
    fill(held.back().object, bytes, static_cast<unsigned>(held.size()));
    total += bytes;
  }
  for (size_t i = 0; i < held.size(); i++) {
    ASSERT_EQ(first_difference(held[i].object, held[i].bytes, static_cast<unsigned>(i + 1)), held[i].bytes) << i;
  }
  while (!held.empty()) {
    std::swap(held[random() % held.size()], held.back());
    free(held.back().object);
    held.pop_back();
  }
}

}  // namespace
