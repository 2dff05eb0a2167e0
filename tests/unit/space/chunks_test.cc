#include "space/chunks.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "config/size_classes.h"
#include "os/os.h"
#include "space/chunk_table.h"
#include "space/fields.h"
#include "space/large.h"
#include "space/metadata.h"
#include "space/pages.h"
#include "space/region.h"
#include "unit/child.h"
#include "unit/mappings.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// What comes of a cluster is committed.
void expect_chunk(char* chunk) {
  ASSERT_NE(chunk, nullptr);
  EXPECT_TRUE(aligned_to(chunk, kChunkBytes));
  if (!is_cluster(chunk, kClusterCommitted)) ASSERT_TRUE(os::commit(chunk, kChunkBytes));
  // Zero and writable to its last page.
  for (const size_t at : {size_t{0}, kChunkBytes / 2, kChunkBytes - 4096}) {
    EXPECT_TRUE(all_zero(chunk + at, 4096));
    memset(chunk + at, 1, 4096);
  }
}

bool is_last_of_cluster(const char* chunk) { return aligned_to(chunk + kChunkBytes, kClusterBytes); }

// Until no cluster is open, and no chunk vacant.
void use_up(bool huge = false) {
  bool is_new = false;
  for (const char* chunk = nullptr; !is_new || !is_last_of_cluster(chunk);) chunk = acquire_chunk(huge, &is_new);
}
// How many chunks are vacant, which are not then.
size_t take_vacant_chunks() {
  size_t n = 0;
  for (bool is_new = false; acquire_chunk(false, &is_new) != nullptr && !is_new;) ++n;
  return n;
}

bool is_there(const char* address) {
  char byte;
  return os::peek(&byte, address, 1);
}

TEST(Chunks, ChunksAreApartAndCounted) {
  constexpr unsigned kChunks = 1600;  // 400 MiB: several regions
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
  constexpr unsigned kThreads = 4, kChunks = 1200;
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
  // Vacant is what is left over of clusters that were opened at the same time.
  const size_t mapped = chunks_in_use();
  EXPECT_EQ(mapped, carved + kThreads * kChunks + take_vacant_chunks());
}

// A chunk that is returned is used again before a new one.
TEST(Chunks, AVacantChunkComesFirst) {
  const int result = in_child([] {
    constexpr size_t kReturned = 5000;  // in several windows
    use_up();
    std::vector<char*> chunks(kReturned);
    for (char*& chunk : chunks) chunk = acquire_chunk();
    const size_t mapped = chunks_in_use(), reserved = region_bytes();
    for (char* const chunk : chunks) return_chunk(chunk);
    if (chunks_in_use() != mapped || region_bytes() != reserved) return kFailed;
    std::set<char*> places(chunks.begin(), chunks.end());
    for (size_t i = 0; i < kReturned; ++i) {
      bool is_new = true;
      char* const chunk = acquire_chunk(false, &is_new);
      if (is_new || places.erase(chunk) == 0) return kFailed;
      chunk[0] = chunk[kChunkBytes - 1] = 1;
    }
    bool is_new = false;
    acquire_chunk(false, &is_new);
    return is_new ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

// A limit on what is writable: what large objects have left is committed, a new cluster would not be. Nor is one that
// was refused handed out before those that are committed.
TEST(Chunks, WhatIsCommittedComesFirst) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "they need address space of their own";
  const int result = in_child([] {
    char* const own = acquire_chunk();
    use_up();
    void* const large = large_alloc(process_fields, 4 * kMiB, 64, false);
    if (own == nullptr || large == nullptr || !large_free(large)) return kFailed;
    const rlimit limit{4096, 4096};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) return kCannot;
    for (unsigned i = 0; i < 8; ++i) {
      char* const chunk = acquire_chunk();
      if (chunk + kChunkBytes < large || chunk >= static_cast<char*>(large) + 4 * kMiB) return kFailed;
      memset(chunk, 1, kChunkBytes);
    }
    while (acquire_lent_chunk() != nullptr) {
    }
    char* const bare = acquire_chunk();
    if (bare == nullptr || is_cluster(bare, kClusterCommitted)) return kFailed;
    return_chunk(bare);
    return_chunk(own);
    return acquire_chunk() == own ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limit on data can be set here";
  EXPECT_EQ(result, kPassed);
}

// Where the kernel grants nothing for metadata, what large objects have left serves as such.
TEST(Chunks, AFieldLendsToMetadata) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "they need address space of their own";
  const int result = in_child([] {
    constexpr size_t kLarge = 4 * kMiB;
    options.huge_pages = kHugePagesNever;  // for which whole clusters would be granted
    auto* const large = static_cast<char*>(large_alloc(process_fields, kLarge, 64, false));
    if (large == nullptr) return kFailed;
    memset(large, 1, kLarge);
    if (!large_free(large)) return kFailed;
    const rlimit limit{4096, 4096};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) return kCannot;
    while (metadata_alloc(4 * kKiB) != nullptr) {
    }
    unsigned lent = 0;
    if (!metadata_is_refused()) return kFailed;
    for (; lend_to_metadata(); ++lent) {
      auto* const at = static_cast<char*>(metadata_alloc(4 * kKiB));
      // In the field: what was granted for the object, rounded up to a word of it.
      if (at == nullptr || at < large - kMiB || at >= large + kLarge + kMiB || !all_zero(at, 4 * kKiB)) return kFailed;
    }
    return !metadata_is_refused() && lent >= kLarge / kChunkBytes - 1 ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limit on data can be set here";
  EXPECT_EQ(result, kPassed);
}

// Where address space is short: a cluster whose eight chunks are vacant, no part of another.
TEST(Chunks, VacantClustersAreUnmapped) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  const int result = in_child([] {
    use_up();
    std::vector<char*> chunks(3 * kClusterChunks);
    for (char*& chunk : chunks) {
      chunk = acquire_chunk();
      chunk[0] = 1;
    }
    const size_t mapped = chunks_in_use(), reserved = region_bytes();
    for (char* const chunk : chunks) {
      if (chunk != chunks[2 * kClusterChunks + 3]) return_chunk(chunk);
    }
    if (unmap_vacant_clusters() != 2 || unmap_vacant_clusters() != 0) return kFailed;
    if (chunks_in_use() != mapped - 2 * kClusterChunks || region_bytes() != reserved - 2 * kClusterBytes)
      return kFailed;
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (is_there(chunks[i]) != (i >= 2 * kClusterChunks)) return kFailed;
    }
    return take_vacant_chunks() == kClusterChunks - 1 ? kPassed : kFailed;
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
      // Aligning the last, smallest region takes 2 MiB of slack; less than another cluster is left over.
      return chunks * kChunkBytes + 2 * kClusterBytes + 16 * kKiB >= limit - kClusterBytes && errno == 0 ? kPassed
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
    while (carve_cluster() != nullptr) {
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

// Where address space of clusters has become a field's, what is lent there is not committed, though they were.
TEST(Chunks, WhatIsLentIsNotTakenForCommitted) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    std::vector<char*> chunks(1600);  // 400 MiB, so that a field fits into their hole
    for (char*& chunk : chunks) chunk = acquire_chunk();
    const std::set<char*> places(chunks.begin(), chunks.end());
    for (char* const chunk : chunks) return_chunk(chunk);
    while (large_stats(process_fields).reserved < 3 * kFieldBytesMost) {
      if (large_alloc(process_fields, kLargeMost, 1, false) == nullptr) return kFailed;
    }
    if (!limit_address_space(0)) return kCannot;
    while (carve_cluster() != nullptr) {
    }
    unsigned in_hole = 0;
    while (char* const chunk = acquire_chunk()) {
      expect_chunk(chunk);
      in_hole += chunk_code(cluster_start(chunk)) == kCodeLarge && places.count(chunk) != 0 ? 1 : 0;
    }
    if (::testing::Test::HasFailure()) return kFailed;
    return in_hole != 0 ? kPassed : kCannot;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here, or no field lies where chunks were";
  EXPECT_EQ(result, kPassed);
}

// ---- Clusters ----

TEST(Clusters, TheirChunksComeOneAfterTheOtherAndCommitted) {
  use_up();
  for (unsigned n = 0; n < 3; ++n) {
    char* const start = acquire_chunk();
    ASSERT_TRUE(aligned_to(start, kClusterBytes));
    for (unsigned i = 0; i < kClusterChunks; ++i) {
      char* const chunk = i == 0 ? start : acquire_chunk();
      ASSERT_EQ(chunk, start + i * kChunkBytes);
      EXPECT_EQ(cluster_start(chunk + kChunkBytes - 1), start);
      EXPECT_TRUE(is_cluster(chunk + kChunkBytes - 1, kClusterCommitted));
      EXPECT_FALSE(is_cluster(chunk, kClusterHuge));
      EXPECT_FALSE(is_cluster(chunk, kClusterPurged));
      EXPECT_TRUE(all_zero(chunk, kChunkBytes));
      memset(chunk, 1, kChunkBytes);
    }
  }
}

TEST(Clusters, OneThatIsNotCommittedSaysSo) {
  const int result = in_child([] {
    char* last = nullptr;
    // The next one shall need no window of its own.
    do {
      while (!is_last_of_cluster(last = acquire_chunk())) {
      }
    } while (window_of(last + kChunkBytes) != window_of(last));
    if (!refuse_call(SYS_mprotect, ENOMEM)) return kCannot;
    for (const bool huge : {false, true}) {
      for (unsigned i = 0; i < kClusterChunks; ++i) {
        char* const chunk = acquire_chunk(huge);
        if (chunk == nullptr || cluster_state(chunk) == nullptr) return kFailed;
        if (is_cluster(chunk, kClusterCommitted) || is_cluster(chunk, kClusterHuge)) return kFailed;
      }
    }
    return kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

TEST(Clusters, NoAddressOfOthersHasAState) {
  int on_stack = 0;
  auto* const address = reinterpret_cast<char*>(&on_stack);
  EXPECT_EQ(cluster_state(address), nullptr);
  EXPECT_FALSE(is_cluster(address, kClusterCommitted));
  EXPECT_FALSE(touch_purged_cluster(address, true));
  break_cluster(address);
}

TEST(Clusters, WhatIsLeftOfOneServesWhereNoneCanBeOpened) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    use_up();
    use_up(true);
    char* const first = acquire_chunk();
    if (!limit_address_space(0)) return kCannot;
    while (carve_cluster() != nullptr) {
    }
    for (unsigned i = 1; i < kClusterChunks; ++i) {
      if (acquire_chunk(true) != first + i * kChunkBytes) return kFailed;
    }
    return kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

// All threads at once, each time from where no cluster is open: each may open one. What is left over comes before
// another cluster is opened, so that all of them are used up in the end.
TEST(Clusters, WhatIsLeftOverOfThoseOpenedAtTheSameTimeIsHandedOut) {
  const int result = in_child([] {
    constexpr unsigned kThreads = 8;
    for (unsigned turn = 0; turn < rounds(100); ++turn) {
      use_up();
      const size_t mapped = chunks_in_use();
      std::map<char*, unsigned> clusters;  // how many of its chunks were handed out
      std::set<char*> chunks;
      const auto note = [&](char* chunk) {
        EXPECT_TRUE(is_cluster(chunk, kClusterCommitted));
        EXPECT_TRUE(chunks.insert(chunk).second) << "handed out twice";
        ++clusters[cluster_start(chunk)];
        chunk[0] = chunk[kChunkBytes - 1] = 1;
      };
      char* got[kThreads];
      std::atomic<unsigned> ready{0};
      std::vector<std::thread> threads;
      for (unsigned t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          for (++ready; ready != kThreads;) std::this_thread::yield();
          got[t] = acquire_chunk();
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (char* const chunk : got) note(chunk);
      const size_t opened = clusters.size();
      while (chunks.size() < opened * kClusterChunks) note(acquire_chunk());
      EXPECT_EQ(clusters.size(), opened) << "another one was opened before";
      EXPECT_EQ(chunks_in_use(), mapped + chunks.size());
    }
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
  EXPECT_EQ(result, kPassed);
}

// ---- Huge pages ----

// In children: what is left of an open cluster would disturb others.
bool is_advised(const void* address) { return mapping_flags(address).find(" hg ") != std::string::npos; }

// A cluster of huge pages, of which all chunks were acquired. Null where the kernel has none.
char* huge_cluster() {
  use_up(true);
  char* const start = acquire_chunk(true);
  for (unsigned i = 1; i < kClusterChunks; ++i) EXPECT_EQ(acquire_chunk(true), start + i * kChunkBytes);
  return is_cluster(start, kClusterHuge) && is_advised(start) ? start : nullptr;
}

size_t resident_in_cluster(const char* start) {
  std::vector<unsigned char> pages(kClusterBytes / os::page_bytes());
  EXPECT_TRUE(residency(start, kClusterBytes, pages.data()));
  size_t there = 0;
  for (const unsigned char page : pages) there += page & 1;
  return there * os::page_bytes();
}

template <class Body>
void with_huge_pages(Body&& body) {
  const int result = in_child([&] {
    if (kEmulated || !os::huge_pages_come()) return kCannot;
    body();
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "no huge pages here";
  EXPECT_EQ(result, kPassed);
}

TEST(Clusters, ChunksOfHugePagesComeFromOneOfTheirOwn) {
  with_huge_pages([] {
    use_up();
    use_up(true);
    char* const small = acquire_chunk();
    char* const huge = acquire_chunk(true);
    EXPECT_NE(cluster_start(small), cluster_start(huge));
    EXPECT_TRUE(is_cluster(huge, kClusterCommitted));
    EXPECT_TRUE(is_cluster(huge, kClusterHuge));
    EXPECT_TRUE(is_advised(huge) && is_advised(huge + kClusterBytes - 1));
    EXPECT_FALSE(is_cluster(small, kClusterHuge));
    EXPECT_FALSE(is_advised(small));
    small[0] = huge[0] = 1;
    EXPECT_EQ(resident_in_cluster(huge), kClusterBytes);
    EXPECT_EQ(resident_in_cluster(small), os::page_bytes());
    // By turns, each goes on in its own.
    for (unsigned i = 1; i < kClusterChunks; ++i) {
      EXPECT_EQ(acquire_chunk(true), huge + i * kChunkBytes);
      EXPECT_EQ(acquire_chunk(), small + i * kChunkBytes);
    }
  });
}

TEST(Clusters, OneThatIsBrokenLosesItsAdviceAndItsMark) {
  with_huge_pages([] {
    char* const start = huge_cluster();
    if (start == nullptr) return ADD_FAILURE() << "huge pages come";
    start[0] = 1;
    const size_t there = resident_in_cluster(start);
    break_cluster(start + 5 * kChunkBytes);
    EXPECT_FALSE(is_cluster(start, kClusterHuge));
    EXPECT_TRUE(is_cluster(start, kClusterCommitted)) << "that it stays";
    EXPECT_FALSE(is_advised(start) || is_advised(start + kClusterBytes - 1));
    EXPECT_EQ(resident_in_cluster(start), there) << "what is there stays";
    // Where no mark is, nothing happens: it costs no call.
    ASSERT_TRUE(os::prefer_huge_pages(start, kClusterBytes));
    break_cluster(start);
    EXPECT_TRUE(is_advised(start));
  });
}

TEST(Clusters, OneThatWasPurgedIsTakenOnceAndMayBeHugeAgain) {
  with_huge_pages([] {
    char* const start = huge_cluster();
    if (start == nullptr) return ADD_FAILURE() << "huge pages come";
    char* const within = start + 3 * kChunkBytes;
    EXPECT_FALSE(touch_purged_cluster(start, true)) << "not yet";
    ASSERT_TRUE(purge_pages(start, kClusterBytes));
    note_cluster_purged(within);
    EXPECT_TRUE(is_cluster(start, kClusterPurged));
    EXPECT_FALSE(is_cluster(start, kClusterHuge));
    EXPECT_FALSE(is_advised(start));
    EXPECT_EQ(resident_in_cluster(start), 0u);
    ASSERT_TRUE(touch_purged_cluster(within, true));
    EXPECT_FALSE(touch_purged_cluster(start, true)) << "once";
    EXPECT_FALSE(is_cluster(start, kClusterPurged));
    EXPECT_TRUE(is_cluster(start, kClusterHuge));
    EXPECT_TRUE(is_advised(start));
    if (can_populate())
      EXPECT_EQ(resident_in_cluster(start), kClusterBytes) << "touched: some page may have been there";
    note_cluster_purged(start);
    break_cluster(within);
    EXPECT_FALSE(touch_purged_cluster(start, true)) << "a part was purged since";
    note_cluster_purged(start);
    EXPECT_FALSE(touch_purged_cluster(start, false));
    EXPECT_FALSE(is_cluster(start, kClusterPurged) || is_cluster(start, kClusterHuge)) << "small pages come";
  });
}

TEST(Clusters, OneThreadTakesTheMarkOfAPurge) {
  char* const chunk = acquire_chunk();
  unsigned turns_taken = 0;
  for (unsigned turn = 0; turn < rounds(100); ++turn) {
    ASSERT_TRUE(purge_pages(cluster_start(chunk), kClusterBytes, kClusterBytes));
    note_cluster_purged(chunk);
    std::atomic<unsigned> ready{0}, taken{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (++ready; ready != 4;) std::this_thread::yield();
        taken += touch_purged_cluster(chunk, true) ? 1 : 0;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_LE(taken, 1u);
    EXPECT_FALSE(is_cluster(chunk, kClusterPurged));
    EXPECT_EQ(is_cluster(chunk, kClusterHuge), taken == 1);
    turns_taken += taken;
  }
  // Nobody where the kernel brings small pages.
  if (os::huge_pages_come()) EXPECT_GT(turns_taken, 0u);
}

}  // namespace
