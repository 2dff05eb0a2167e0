#include "space/region.h"

#include <errno.h>

#include <set>
#include <thread>

#include "config/size_classes.h"
#include "os/os.h"
#include "unit/child.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

void expect_chunk(char* chunk) {
  ASSERT_NE(chunk, nullptr);
  EXPECT_TRUE(aligned_to(chunk, kChunkBytes));
  ASSERT_TRUE(os::commit(chunk, kChunkBytes));
  // Zero and writable to its last page.
  for (const size_t at : {size_t{0}, kChunkBytes / 2, kChunkBytes - 4096}) {
    EXPECT_TRUE(all_zero(chunk + at, 4096));
    memset(chunk + at, 1, 4096);
  }
}

TEST(Region, ChunksAreApartAndCounted) {
  constexpr unsigned kChunks = 200;  // 400 MiB: several regions
  const size_t carved = region_chunks(), reserved = region_bytes();
  std::set<char*> chunks;
  for (unsigned i = 0; i < kChunks; ++i) {
    char* const chunk = acquire_chunk();
    expect_chunk(chunk);
    EXPECT_TRUE(chunks.insert(chunk).second) << "handed out twice";
  }
  EXPECT_EQ(region_chunks(), carved + kChunks);
  EXPECT_GT(region_bytes(), reserved);
  EXPECT_GE(region_bytes(), region_chunks() * kChunkBytes);
  EXPECT_LE(region_bytes(), 4 * region_chunks() * kChunkBytes) << "regions double; they do not run ahead further";
}

TEST(Region, TheFirstRegionIsSmall) {
  const int result = in_child([] {
    acquire_chunk();
    // Address space may be limited, and most programs are small.
    return region_chunks() > 1 || region_bytes() <= 64 * kMiB ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST(Region, ThreadsGetChunksOfTheirOwn) {
  constexpr unsigned kThreads = 4, kChunks = 150;
  char* got[kThreads][kChunks];
  const size_t carved = region_chunks();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (char*& chunk : got[t]) chunk = acquire_chunk();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<char*> chunks;
  for (const auto& mine : got) {
    for (char* const chunk : mine) {
      ASSERT_NE(chunk, nullptr);
      EXPECT_TRUE(aligned_to(chunk, kChunkBytes));
      EXPECT_TRUE(chunks.insert(chunk).second);
    }
  }
  EXPECT_EQ(region_chunks(), carved + kThreads * kChunks);
}

TEST(Region, AChunkThatIsReturnedServesAgain) {
  const int result = in_child([] {
    char* const first = acquire_chunk();
    char* const second = acquire_chunk();
    const size_t carved = region_chunks(), reserved = region_bytes();
    return_chunk(second);
    if (region_chunks() != carved - 1 || region_bytes() != reserved) return kFailed;
    if (acquire_chunk() != second) return kFailed;
    // Not the last one: it leaves a hole.
    return_chunk(first);
    char byte;
    if (region_bytes() != reserved - kChunkBytes || os::peek(&byte, first, 1)) return kFailed;
    for (unsigned i = 0; i < 100; ++i) {
      char* const chunk = acquire_chunk();
      if (chunk == nullptr || chunk == second || !os::commit(chunk, kChunkBytes)) return kFailed;
    }
    return kPassed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST(Region, ShortAddressSpaceIsUsedToNearlyItsEnd) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  for (const size_t limit : {6 * kMiB, 20 * kMiB, 90 * kMiB, 333 * kMiB}) {
    const int result = in_child([limit] {
      while (region_bytes() > region_chunks() * kChunkBytes) acquire_chunk();
      if (!limit_address_space(limit)) return kCannot;
      errno = 0;
      size_t chunks = 0;
      while (acquire_chunk() != nullptr) ++chunks;
      // Aligning the last, smallest region takes 2 MiB of slack; less than another chunk is left over.
      return chunks * kChunkBytes + 2 * kChunkBytes + 16 * kKiB >= limit - kChunkBytes && errno == 0 ? kPassed
                                                                                                     : kFailed;
    });
    if (result == kCannot) GTEST_SKIP() << "no limits here";
    EXPECT_EQ(result, kPassed) << limit;
  }
}

}  // namespace
