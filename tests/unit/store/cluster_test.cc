// Huge pages of clusters: when they come, go and come back.
#include <algorithm>
#include <atomic>
#include <thread>

#include "config/options.h"
#include "os/os.h"
#include "space/advised_runs.h"
#include "space/chunks.h"
#include "space/field.h"
#include "space/huge_pace.h"
#include "space/large.h"
#include "space/room.h"
#include "store/bin.h"
#include "store/check.h"
#include "store/cluster.h"
#include "store/occupancy.h"
#include "store/purge.h"
#include "store/residency.h"
#include "store/retire.h"
#include "unit/mappings.h"
#include "unit/store/fresh_heap.h"
#include "unit/store/purge_bins.h"
#include "unit/store/take_give.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr unsigned kSmallHeap = 9;  // chunks of 63 pages in use, 2 MiB; huge pages come to larger heaps

// A cluster of one bin, the last one of its heap; its objects are taken, and all chunks below are full.
struct HugeCluster {
  const BinId bin = bin_of(64);
  char* start = nullptr;
  std::vector<Descriptor*> chunks;
  std::vector<void*> objects;  // by address
  bool is_huge = false;        // false: the kernel has no huge pages

  HugeCluster() {
    take_chunks(bin, kSmallHeap);
    objects = take_chunks(bin, kClusterChunks);
    std::sort(objects.begin(), objects.end());
    start = cluster_start(static_cast<char*>(objects.front()));
    EXPECT_EQ(cluster_start(static_cast<char*>(objects.back())), start);
    visit_cluster(start, [&](Descriptor& d) {
      chunks.push_back(&d);
      return true;
    });
    EXPECT_EQ(chunks.size(), kClusterChunks);
    is_huge = is_cluster(start, kClusterHuge);
    for (const Descriptor* d : chunks) EXPECT_EQ(d->backing() == Backing::kHuge, is_huge);
    note_huge_page(0, true);  // no pause, if it was slow
  }
  size_t of_chunk() const { return info_of(bin).objects; }
  size_t pages() const { return kClusterBytes / os::page_bytes(); }
  size_t marked() const {
    size_t sum = 0;
    for (Descriptor* d : chunks) sum += marked_pages(*d);
    return sum;
  }
  bool all_are(Backing backing) const {
    return std::all_of(chunks.begin(), chunks.end(), [&](const Descriptor* d) { return d->backing() == backing; });
  }
  void give_range(size_t from, size_t to) const {
    give(bin, {objects.begin() + static_cast<ptrdiff_t>(from), objects.begin() + static_cast<ptrdiff_t>(to)});
  }
  void give_all() const { give(bin, objects); }
};

// So that what is written late comes as huge pages.
TEST(Clusters, HugePagesStayAdvisedUntilAPurge) {
  EXPECT_IN_FRESH_HEAP([] {
    const BinId bin = bin_of(64);
    const std::vector<void*> objects = take_chunks(bin, kSmallHeap + 2 * kClusterChunks);
    std::vector<char*> huge;
    visit_chunks(process_store, bin, [&](Descriptor& d) {
      if (d.backing() == Backing::kHuge) huge.push_back(d.chunk());
      return true;
    });
    const auto advised = [&] {
      return std::count_if(huge.begin(), huge.end(),
                           [](char* chunk) { return mapping_flags(chunk).find(" hg ") != std::string::npos; });
    };
    const auto all = static_cast<std::ptrdiff_t>(huge.size());
    if (advised() != 0) EXPECT_EQ(advised(), all) << "none where the kernel has none";
    give(bin, objects);
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(advised(), 0);
  });
}

TEST(Clusters, NoNewHugePagesAfterSoManyRuns) {  // so that mappings do not run out
  EXPECT_IN_FRESH_HEAP([] {
    runs_begun.set(kRunsMost);
    const BinId bin = bin_of(64);
    const auto none_is_huge = [&] {
      visit_chunks(process_store, bin, [&](Descriptor& d) {
        EXPECT_NE(d.backing(), Backing::kHuge);
        return true;
      });
    };
    give(bin, take_chunks(bin, kSmallHeap + kClusterChunks));
    none_is_huge();
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    take_chunks(bin, kSmallHeap + kClusterChunks);
    none_is_huge();
  });
}

TEST(Clusters, ABinOfManyFullChunksInALargeHeapGetsHugePages) {
  for (const size_t size : {16, 64, 3000}) {
    EXPECT_IN_FRESH_HEAP([&] {
      const PageDelta delta;
      const BinId bin = bin_of(size);
      std::vector<void*> objects;
      unsigned huge = 0;
      for (unsigned chunk = 0; chunk < kSmallHeap + 2 * kClusterChunks; ++chunk) {
        note_huge_page(0, true);  // however slow the one before was
        bool first = true;
        const auto more = take_chunk(bin, [&](Descriptor& d, size_t) {
          if (first && is_huge(d)) {
            EXPECT_EQ(marked_pages(d), ChunkPages(d).count());
            ++huge;
          }
          first = false;
        });
        if (chunk < kSmallHeap) ASSERT_EQ(huge, 0u) << size << ": chunk " << chunk;
        objects.insert(objects.end(), more.begin(), more.end());
      }
      EXPECT_TRUE(check_bin(process_store, bin));
      // None where the kernel has no huge pages; else all.
      if (huge != 0) EXPECT_EQ(huge, 2 * kClusterChunks) << size;
      give(bin, objects);
      // What lies outside of the objects goes with the huge page.
      EXPECT_LE(delta.dirty(), delta.resident());
      EXPECT_GE(delta.dirty() + static_cast<int64_t>(huge * kColours * kPageBytesLeast), delta.resident());
      purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
      EXPECT_EQ(delta.resident(), 0) << size;
    });
  }
}

// The second chunk in place of the fifth.
TEST(Clusters, SoDoesABinOfSomeFullChunksWhereLittleIsFree) {
  EXPECT_IN_FRESH_HEAP([] {
    options.dirty_floor = 1024;  // no bin inherits what another one has left
    const std::vector<void*> heap = take_chunks(bin_of(200), 2 * kSmallHeap + 2);
    const auto first_huge = [](BinId bin) {
      for (unsigned chunk = 1; chunk <= 8; ++chunk) {
        if (is_huge(*place_of(take_chunks(bin, 1).back()).descriptor)) return chunk;
      }
      return 0u;
    };
    const unsigned second = first_huge(bin_of(64));
    if (second == 0) return;  // the kernel has none
    EXPECT_EQ(second, 2u);
    give(bin_of(200), {heap.begin(), heap.begin() + static_cast<ptrdiff_t>(heap.size() / 2)});
    EXPECT_EQ(first_huge(bin_of(100)), 5u);
  });
}

// Objects of a page and more: some chunks, as many of their pages may never be written.
TEST(Clusters, SoDoesABinOfLargerObjectsForSomeChunks) {
  EXPECT_IN_FRESH_HEAP([] {
    take_chunks(bin_of(200), kSmallHeap);
    std::string huge;
    for (unsigned chunk = 1; chunk <= 24; ++chunk) {
      note_huge_page(0, true);
      huge += is_huge(*place_of(take_chunks(bin_of(5000), 1).back()).descriptor) ? 'h' : '-';
    }
    if (huge.find('h') == std::string::npos) return;  // the kernel has none
    EXPECT_EQ(huge, "----hhhhhhhhhhhh--------");
  });
}

// And more of them where they grow, as then they are written.
TEST(Clusters, SoDoesABinOfLargerObjectsThatGrow) {
  EXPECT_IN_FRESH_HEAP([] {
    take_chunks(bin_of(200), kSmallHeap);
    const auto any_huge = [](BinId bin, bool growing, uint8_t grown) {
      bool any = false;
      for (unsigned chunk = 0; chunk < 8; ++chunk) {
        note_huge_page(0, true);
        process_store.of(bin).growing.set(growing);
        process_store.of(bin).grown.set(grown);
        any |= is_huge(*place_of(take_chunks(bin, 1).back()).descriptor);
      }
      return any;
    };
    if (!any_huge(bin_of(64), false, 0)) return;  // the kernel has none
    take_chunks(bin_of(5000), 16);                // which may be huge whether they grow or not
    EXPECT_FALSE(any_huge(bin_of(5000), true, 4)) << "few grow";
    EXPECT_FALSE(any_huge(bin_of(5000), false, 8)) << "this one does not";
    EXPECT_TRUE(any_huge(bin_of(5000), true, 8));
    EXPECT_TRUE(check_bin(process_store, bin_of(5000)));
  });
}

TEST(Clusters, TheEndsOfAChunkOfAHugePageGoWithItsFirstPart) {
  EXPECT_IN_FRESH_HEAP([] {
    const HugeCluster cluster;
    if (!cluster.is_huge) return;
    Descriptor& last = *cluster.chunks.back();
    memset(last.chunk(), 0, kPageBytesLeast);
    memset(last.chunk() + kChunkBytes - 8, 0, 8);
    // All but one object in the middle.
    std::vector<void*> given(cluster.objects.end() - static_cast<ptrdiff_t>(cluster.of_chunk()), cluster.objects.end());
    given.erase(given.begin() + static_cast<ptrdiff_t>(given.size() / 2));
    give(cluster.bin, given);
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(resident_pages(last.chunk(), kChunkBytes), 1u);
    EXPECT_EQ(resident_pages(cluster.start, kClusterBytes - kChunkBytes), cluster.pages() / 8 * 7);
    EXPECT_FALSE(is_cluster(cluster.start, kClusterHuge));
    EXPECT_TRUE(check_bin(process_store, cluster.bin));
  });
}

TEST(Clusters, AHugePageGoesAsAWhole) {
  for (const PurgeWhich which : {PurgeWhich::kAll, PurgeWhich::kNow, PurgeWhich::kAged}) {
    EXPECT_IN_FRESH_HEAP([&] {
      const HugeCluster cluster;
      if (!cluster.is_huge) return;
      const PageDelta delta;
      cluster.give_all();
      if (which == PurgeWhich::kAged) {
        EXPECT_EQ(purge_bins(process_store, which, kNoLimit), 0u) << "nothing has aged";
        EXPECT_TRUE(is_cluster(cluster.start, kClusterHuge));
      }
      EXPECT_EQ(purge_bins(process_store, which, kNoLimit), kClusterBytes);
      EXPECT_EQ(delta.calls(), 1u);
      EXPECT_EQ(delta.purged(), kClusterBytes);
      EXPECT_EQ(delta.resident(), -static_cast<int64_t>(kClusterBytes));
      EXPECT_EQ(delta.dirty(), 0);
      EXPECT_EQ(resident_pages(cluster.start, kClusterBytes), 0u);
      EXPECT_TRUE(cluster.all_are(Backing::kHugePurged));
      EXPECT_TRUE(is_cluster(cluster.start, kClusterPurged));
      EXPECT_TRUE(check_bin(process_store, cluster.bin));
    });
  }
}

// A tick breaks it up only for an eighth.
TEST(Clusters, AHugePageStaysUntilAnEighthIsFree) {
  EXPECT_IN_FRESH_HEAP([] {
    const HugeCluster cluster;
    if (!cluster.is_huge) return;
    const PageDelta delta;
    const auto tick = [&] {
      age_bins(process_store);
      return purge_bins(process_store, PurgeWhich::kAged, kNoLimit);
    };
    // All objects of a chunk: the pages outside of them are not counted as free.
    cluster.give_range(0, cluster.of_chunk());
    ASSERT_LT(delta.dirty(), static_cast<int64_t>(kClusterBytes / 8));
    EXPECT_EQ(tick(), 0u);
    EXPECT_TRUE(is_cluster(cluster.start, kClusterHuge));
    EXPECT_EQ(cluster.marked(), cluster.pages());
    EXPECT_EQ(resident_pages(cluster.start, kClusterBytes), cluster.pages());
    // Of another chunk enough for an eighth.
    const size_t page = os::page_bytes();
    cluster.give_range(cluster.of_chunk(), cluster.of_chunk() + 4 * page / 64);
    ASSERT_GE(delta.dirty(), static_cast<int64_t>(kClusterBytes / 8));
    EXPECT_GE(tick(), kClusterBytes / 8);
    EXPECT_FALSE(is_cluster(cluster.start, kClusterHuge));
    EXPECT_EQ(delta.dirty(), 0);
    EXPECT_EQ(mapping_flags(cluster.start).find(" hg "), std::string::npos);
    EXPECT_EQ(resident_pages(cluster.start, kClusterBytes), cluster.marked());
    EXPECT_LE(cluster.marked(), cluster.pages() * 7 / 8);
    EXPECT_TRUE(check_bin(process_store, cluster.bin));
    // Then each part goes as of any small pages.
    cluster.give_range(2 * cluster.of_chunk(), 2 * cluster.of_chunk() + 4 * page / 64);
    EXPECT_GE(tick(), 3 * page);
  });
}

TEST(Clusters, AHugePageThatComesBackCountsAsAWhole) {
  EXPECT_IN_FRESH_HEAP([] {
    const HugeCluster cluster;
    if (!cluster.is_huge) return;
    const PageDelta delta;
    cluster.give_all();
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(cluster.marked(), 0u);
    void* object = nullptr;
    ASSERT_EQ(take_objects(process_store, cluster.bin, &object, 1), 1u);
    EXPECT_EQ(object, cluster.objects.front());
    EXPECT_TRUE(is_cluster(cluster.start, kClusterHuge));
    EXPECT_TRUE(cluster.all_are(Backing::kHuge));
    EXPECT_EQ(cluster.marked(), cluster.pages());
    EXPECT_EQ(resident_pages(cluster.start, kClusterBytes), cluster.pages());
    EXPECT_EQ(delta.resident(), 0);
    const auto page = static_cast<int64_t>(os::page_bytes());
    EXPECT_EQ(delta.dirty(), kClusterChunks * ChunkPages(*cluster.chunks[0]).in_use().count() * page - page);
    EXPECT_TRUE(check_bin(process_store, cluster.bin));
    // What is not used of it goes.
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(marked_pages(*cluster.chunks[0]), 1u);
    EXPECT_EQ(cluster.marked(), 1u);
    EXPECT_EQ(resident_pages(cluster.start, kClusterBytes), 1u);
    EXPECT_EQ(delta.dirty(), 0);
  });
}

// Where a page of the cluster is there, small ones come in place of a huge one: those that are used, or all where the
// first took long. What is counted no more is what was there already.
TEST(Clusters, WhereNoHugePageComesWhatIsCountedIsThere) {
  EXPECT_IN_FRESH_HEAP([] {
    const HugeCluster cluster;
    if (!cluster.is_huge) return;
    cluster.give_all();
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    memset(cluster.start + kClusterBytes / 2, 0, 8);
    void* object = nullptr;
    ASSERT_EQ(take_objects(process_store, cluster.bin, &object, 1), 1u);
    EXPECT_EQ(object, cluster.objects.front());
    const size_t resident = resident_pages(cluster.start, kClusterBytes);
    EXPECT_LE(cluster.marked(), resident);
    EXPECT_LE(resident, cluster.marked() + 2);
  });
}

// Then the kernel has a table of small pages, and gives no huge page beside them.
TEST(Clusters, WhatComesBackInAPauseStaysSmall) {
  EXPECT_IN_FRESH_HEAP([] {
    const HugeCluster cluster;
    if (!cluster.is_huge) return;
    cluster.give_all();
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    note_huge_page(60'000'000, true);  // a pause
    void* object = nullptr;
    ASSERT_EQ(take_objects(process_store, cluster.bin, &object, 1), 1u);
    EXPECT_EQ(object, cluster.objects.front());
    EXPECT_FALSE(is_cluster(cluster.start, kClusterHuge));
    EXPECT_FALSE(is_cluster(cluster.start, kClusterPurged));
    EXPECT_LE(cluster.marked(), 1 + kAheadMost / os::page_bytes());
    note_huge_page(0, true);
    // All of it, chunk by chunk.
    const auto more = take_chunks(cluster.bin, 1);
    EXPECT_GE(more.size(), cluster.objects.size() - 1);
    EXPECT_FALSE(is_cluster(cluster.start, kClusterHuge));
    EXPECT_TRUE(cluster.all_are(Backing::kSmallPurged));
    // Which goes chunk by chunk too.
    const PageDelta delta;
    const size_t there = cluster.marked();
    cluster.give_all();
    EXPECT_EQ(purge_bins(process_store, PurgeWhich::kAll, kNoLimit), there * os::page_bytes());
    EXPECT_EQ(delta.purged(), there * os::page_bytes());
    EXPECT_EQ(delta.calls(), kClusterChunks);
    EXPECT_EQ(cluster.marked(), 0u);
    EXPECT_EQ(resident_pages(cluster.start, kClusterBytes), 0u);
    EXPECT_TRUE(check_bin(process_store, cluster.bin));
  });
}

// Beside a purge that takes absent pages with it, which nothing gave back.
TEST(Clusters, WhatWasPurgedNeverFalls) {
  EXPECT_IN_FRESH_HEAP([] {
    HugeCluster cluster;
    std::atomic<bool> ends{false}, fell{false};
    std::thread reader([&] {
      for (uint64_t last = 0; !ends.load(); last = page_counts.purged.get()) {
        if (page_counts.purged.get() < last) fell = true;
      }
    });
    const size_t all = cluster.objects.size();
    // As a whole, then, where it is broken, by halves.
    for (const size_t step : {all, all / 2}) {
      for (unsigned turn = 0; turn < rounds(50); ++turn) {
        for (size_t from = 0; from < all; from += step) {
          cluster.give_range(from, from + step);
          purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
        }
        for (auto at = cluster.objects.begin(); at != cluster.objects.end();)
          at += take_objects(process_store, cluster.bin, &*at,
                             static_cast<unsigned>(std::min<ptrdiff_t>(kFolioObjects, cluster.objects.end() - at)));
        std::sort(cluster.objects.begin(), cluster.objects.end());
      }
    }
    ends = true;
    reader.join();
    EXPECT_FALSE(fell);
  });
}

// The kernel refuses to purge all of it then.
TEST(Clusters, ALockedPageKeepsNoOtherChunkOfAHugePage) {
  EXPECT_IN_FRESH_HEAP([] {
    const HugeCluster cluster;
    if (!cluster.is_huge) return;
    void* const locked = cluster.start + kClusterBytes / 2;
    if (!lock_page(locked)) return;
    cluster.give_all();
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    const auto step = static_cast<size_t>(kPurgeRunBytes / os::page_bytes());
    EXPECT_LE(cluster.marked(), step);
    EXPECT_LE(resident_pages(cluster.start, kClusterBytes), cluster.marked());
    EXPECT_FALSE(is_cluster(cluster.start, kClusterHuge));
    unlock_page(locked);
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_TRUE(check_bin(process_store, cluster.bin));
  });
}

TEST(Clusters, NothingComesBeforeItIsNeededWhereMemoryIsTight) {
  EXPECT_IN_FRESH_HEAP([] {
    memory_room.tight.set(true);
    const BinId bin = bin_of(64);
    const PageDelta delta;
    for (unsigned chunk = 0; chunk < kSmallHeap + kClusterChunks; ++chunk) {
      const auto objects = take_chunk(bin, [](Descriptor& d, size_t) { EXPECT_FALSE(is_huge(d)); });
      EXPECT_EQ(delta.dirty(), 0);
    }
    memory_room.tight.set(false);
  });
}

TEST(Clusters, NoHugePagesWhereTheyAreSwitchedOff) {
  EXPECT_IN_FRESH_HEAP([] {
    options.huge_pages = kHugePagesNever;
    const BinId bin = bin_of(64);
    for (unsigned chunk = 0; chunk < kSmallHeap + kClusterChunks; ++chunk) {
      const auto objects = take_chunk(bin, [](Descriptor& d, size_t) { EXPECT_FALSE(is_huge(d)); });
      EXPECT_LE(resident_pages(chunk_start(objects.back()), kChunkBytes), kChunkBytes / os::page_bytes());
    }
  });
}

// A field may lie where clusters were that have been committed and unmapped.
TEST(Clusters, WhatAFieldLendsIsNotTakenForCommitted) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "they need address space of their own";
  EXPECT_IN_FRESH_HEAP([] {
    const BinId bin = bin_of(32 * kKiB), other = bin_of(500);  // another one has no descriptor of the place yet
    const std::vector<void*> objects = take_many(bin, 4 * kFieldBytesMost / kChunkBytes * info_of(bin).objects);
    give(bin, objects);
    EXPECT_EQ(retire_free_chunks(process_store), 4 * kFieldBytesMost / kChunkBytes);
    // Of a field of which little is committed, where the chunks were.
    char* const large = static_cast<char*>(large_alloc(process_fields, kMiB, 64, false));
    if (!is_cluster(large + 4 * kClusterBytes, kClusterCommitted)) return;  // it lies elsewhere
    ASSERT_TRUE(limit_address_space(0));
    size_t lent = 0;
    void* object = nullptr;
    while (take_objects(process_store, other, &object, 1) == 1) {
      memset(object, 1, 500);
      lent += object >= large && object < large + kFieldBytesMost;
    }
    EXPECT_GT(lent * 500, kFieldBytesMost / 2);
    EXPECT_TRUE(check_bin(process_store, other));
  });
}

}  // namespace
