#include "space/chunks.h"

#include <errno.h>

#include <set>
#include <thread>

#include "config/size_classes.h"
#include "os/os.h"
#include "space/fields.h"
#include "space/large.h"
#include "space/pages.h"
#include "space/region.h"
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

TEST(Chunks, ChunksAreApartAndCounted) {
  constexpr unsigned kChunks = 200;  // 400 MiB: several regions
  const size_t carved = chunks_in_use(), reserved = region_bytes();
  std::set<char*> chunks;
  for (unsigned i = 0; i < kChunks; ++i) {
    char* const chunk = acquire_chunk();
    expect_chunk(chunk);
    EXPECT_TRUE(chunks.insert(chunk).second) << "handed out twice";
  }
  EXPECT_EQ(chunks_in_use(), carved + kChunks);
  EXPECT_GT(region_bytes(), reserved);
  EXPECT_GE(region_bytes(), chunks_in_use() * kChunkBytes);
  EXPECT_LE(region_bytes(), 4 * chunks_in_use() * kChunkBytes) << "regions double; they do not run ahead further";
}

TEST(Chunks, TheFirstRegionIsSmall) {
  const int result = in_child([] {
    acquire_chunk();
    // Address space may be limited, and most programs are small.
    return chunks_in_use() > 1 || region_bytes() <= 64 * kMiB ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST(Chunks, ThreadsGetChunksOfTheirOwn) {
  constexpr unsigned kThreads = 4, kChunks = 150;
  char* got[kThreads][kChunks];
  const size_t carved = chunks_in_use();
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
  EXPECT_EQ(chunks_in_use(), carved + kThreads * kChunks);
}

TEST(Chunks, AChunkThatIsReturnedServesAgain) {
  const int result = in_child([] {
    char* const first = acquire_chunk();
    char* const second = acquire_chunk();
    const size_t carved = chunks_in_use(), reserved = region_bytes();
    return_chunk(second);
    if (chunks_in_use() != carved - 1 || region_bytes() != reserved) return kFailed;
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

// A place that was vacated is used again before another one, and given back where address space is short.
TEST(Chunks, AVacatedPlaceComesFirst) {
  const int result = in_child([] {
    constexpr size_t kVacated = 80;  // more than stay
    std::vector<char*> chunks(kVacated);
    for (char*& chunk : chunks) chunk = acquire_chunk();
    const size_t mapped = chunks_in_use(), reserved = region_bytes();
    for (char* const chunk : chunks) vacate_chunk(chunk);
    const size_t stay = chunks_in_use() + kVacated - mapped;
    if (stay == 0 || stay == kVacated) return kFailed;
    const std::set<char*> places(chunks.begin(), chunks.end());
    for (size_t i = 0; i < stay; ++i) {
      if (places.count(acquire_chunk()) == 0) return kFailed;
    }
    if (chunks_in_use() != mapped - kVacated + stay || region_bytes() > reserved) return kFailed;
    vacate_chunk(chunks.front());
    vacate_chunk(chunks.back());
    const size_t before = chunks_in_use();
    return return_vacant_chunks() == 2 && chunks_in_use() == before - 2 && return_vacant_chunks() == 0 ? kPassed
                                                                                                       : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST(Chunks, ShortAddressSpaceIsUsedToNearlyItsEnd) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  for (const size_t limit : {6 * kMiB, 20 * kMiB, 90 * kMiB, 333 * kMiB}) {
    const int result = in_child([limit] {
      while (region_bytes() > chunks_in_use() * kChunkBytes) acquire_chunk();
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

// In a child, since what is lent stays so.
TEST(Chunks, FieldsLendWhereThereIsNoAddressSpace) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    void* const object = large_alloc(process_fields, kLargeMost, 1, false);
    void* const other = large_alloc(process_fields, kLargeMost, 1, false);
    if (!limit_address_space(0)) return kCannot;
    while (carve_chunk() != nullptr) {
    }
    while (acquire_chunk() != nullptr) {
    }
    EXPECT_TRUE(large_free(object));
    const size_t before = chunks_in_use();
    std::vector<char*> lent;
    while (char* const chunk = acquire_chunk()) lent.push_back(chunk);
    EXPECT_GE(lent.size(), kLargeMost / kChunkBytes - 1);
    EXPECT_EQ(chunks_in_use(), before + lent.size());
    for (char* const chunk : lent) {
      expect_chunk(chunk);
      EXPECT_TRUE(purge_pages(chunk, kChunkBytes));
      return_chunk(chunk);
    }
    EXPECT_EQ(chunks_in_use(), before);
    EXPECT_NE(large_alloc(process_fields, kLargeMost - kChunkBytes, 1, false, false), nullptr) << "the field's again";
    EXPECT_TRUE(large_free(other));
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

}  // namespace
