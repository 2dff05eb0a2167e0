// What the tests of core/ and diag/ share: contents, and the whole heap looked at from outside.
#pragma once

#include <gtest/gtest.h>
#include <string.h>

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "core/free.h"
#include "core/give_back.h"
#include "core/malloc.h"
#include "diag/stats.h"
#include "os/os.h"
#include "space/huge.h"
#include "space/large.h"
#include "store/bin.h"
#include "store/check.h"
#include "unit/support.h"

namespace folio_test {

inline void* alloc(size_t size) { return opaque(folio::allocate(size)); }
inline void free_object(void* object) { folio::release(object, "free"); }

inline size_t usable(const void* object) {
  folio::Extent extent{};
  EXPECT_TRUE(folio::find_extent(object, "usable", &extent));
  return extent.usable_bytes;
}

// Bytes that depend on their place and on a seed.
inline void fill(void* object, size_t bytes, unsigned seed) {
  auto* at = static_cast<unsigned char*>(object);
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>(i * 31 + (i >> 8) * 7 + seed);
}
inline bool filled(const void* object, size_t bytes, unsigned seed) {
  const auto* at = static_cast<const unsigned char*>(object);
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != static_cast<unsigned char>(i * 31 + (i >> 8) * 7 + seed)) return false;
  }
  return true;
}

// Sizes at every edge: of bins, pages, tables, granules, chunks.
inline std::vector<size_t> edge_sizes() {
  std::vector<size_t> sizes = {0, 1, 2, 7};
  for (unsigned i = 1; i < folio::kBins; ++i) {
    const size_t room = folio::kSizes.info[i].size;
    for (size_t size = room - 1; size <= room + 1; ++size) sizes.push_back(size);
  }
  constexpr size_t kWithLine = 3 * folio::kGranuleBytes - folio::kLineOffsetMost;  // the most in so many granules
  for (const size_t edge : {kWithLine, 64 * kKiB, kMiB, 2 * kMiB, 4 * kMiB, folio::kLargeMost, 12 * kMiB}) {
    for (size_t size = edge - 1; size <= edge + 1; ++size) sizes.push_back(size);
  }
  return sizes;
}

// Everything that the process caches goes back to the folios, what other threads cache excepted.
inline void expect_everything_free() {
  // More than once where a housekeeper is at it too: what it has claimed at that moment is not free.
  for (unsigned i = 0; i < 400; ++i) {
    folio::collect_everything("test");
    if (folio::page_counts.resident.get() == 0) break;
    sleep_ms(5);
  }
  for (const folio::BinId bin : all_bins()) {
    EXPECT_EQ(folio::bin_stats(bin).taken, 0u) << "bin " << index(bin);
    EXPECT_TRUE(folio::check_bin(folio::process_store, bin)) << "bin " << index(bin);
  }
  EXPECT_EQ(folio::large_stats(folio::process_fields).taken, 0u);
  EXPECT_TRUE(folio::large_check(folio::process_fields));
  EXPECT_EQ(folio::totals().live, 0u);
  EXPECT_EQ(folio::page_counts.dirty.get(), 0);
  EXPECT_EQ(folio::page_counts.resident.get(), 0);
}

}  // namespace folio_test
