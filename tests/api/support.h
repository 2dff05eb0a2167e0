// What the interface tests share: values the compiler cannot see through, and patterns that show overlap.
#pragma once

#include <errno.h>
#include <folio/folio.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "../values.h"

namespace folio_test {

// Whether a call gave null, and `error` in errno.
template <class Call>
testing::AssertionResult refused(int error, Call call) {
  errno = 0;
  void *object = opaque(call());
  const int found = errno;
  if (object == nullptr && found == error) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "gave " << object << ", errno " << found << ", not " << error;
}

inline folio_stats stats_now() {
  folio_stats stats = {};
  stats.struct_size = sizeof stats;
  EXPECT_TRUE(folio_stats_get(&stats));
  return stats;
}

// Bytes that depend on their place and on `seed`, so that a shifted or foreign copy differs.
inline unsigned char pattern_byte(size_t at, unsigned seed) {
  return static_cast<unsigned char>((at * 131 + (at >> 8) * 17 + seed * 29 + 1) & 0xff);
}

inline void fill(void *object, size_t bytes, unsigned seed, size_t from = 0) {
  for (size_t i = from; i < bytes; i++) static_cast<unsigned char *>(object)[i] = pattern_byte(i, seed);
}

// The first byte that differs from the pattern, or `bytes`.
inline size_t first_difference(const void *object, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i++) {
    if (static_cast<const unsigned char *>(object)[i] != pattern_byte(i, seed)) return i;
  }
  return bytes;
}

// The usable size of each bin, ascending, then a few huge sizes. Found by asking, not from the table.
inline std::vector<size_t> bin_sizes(size_t most = size_t{1} << 20) {
  std::vector<size_t> sizes;
  for (size_t size = folio_good_size(1); size <= most; size = folio_good_size(size + 1)) {
    if (!sizes.empty() && size <= sizes.back()) {
      ADD_FAILURE() << "good_size(" << sizes.back() + 1 << ") is " << size;
      break;
    }
    sizes.push_back(size);
  }
  return sizes;
}

inline size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Sizes that no allocation can have: beyond PTRDIFF_MAX, and so near the top that rounding up overflows.
inline std::vector<size_t> refused_sizes() {
  std::vector<size_t> sizes = {static_cast<size_t>(PTRDIFF_MAX) + 1, SIZE_MAX / 2 + 4096, SIZE_MAX - (size_t{2} << 20)};
  for (size_t below = 0; below < 70; below++) sizes.push_back(SIZE_MAX - below);
  for (size_t below = 4000; below < 4200; below += 8) sizes.push_back(SIZE_MAX - below);
  // Not refused by rule, but beyond any address space.
  for (size_t below = 0; below < 5; below++) sizes.push_back(static_cast<size_t>(PTRDIFF_MAX) - below);
  sizes.push_back(size_t{1} << 62);
  sizes.push_back(size_t{1} << 48);
  return sizes;
}

}  // namespace folio_test
