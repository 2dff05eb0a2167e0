#include "store/residency.h"

#include <sys/syscall.h>

#include <algorithm>
#include <random>

#include "config/options.h"
#include "os/os.h"
#include "space/room.h"
#include "store/bin.h"
#include "store/check.h"
#include "store/occupancy.h"
#include "store/purge.h"
#include "unit/child.h"
#include "unit/store/fresh_heap.h"
#include "unit/store/purge_bins.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// Of every page and object of a chunk, by division.
TEST(Residency, WhichPagesObjectsTouch) {
  for (const BinId bin : all_bins()) {
    const BinInfo& info = info_of(bin);
    const size_t page = os::page_bytes();
    Descriptor d{};
    d.bin = bin;
    d.first = reinterpret_cast<char*>(37 * kChunkBytes) + 3 * std::max(page, size_t{1} << info.natural_shift);
    const ChunkPages chunk(d);
    const auto first = static_cast<size_t>(d.first - d.chunk());
    for (unsigned i = 0; i < info.objects; i += i < 1000 ? 1 : 97) {
      const Pages pages = chunk.of(i);
      ASSERT_EQ(pages.first, (first + i * info.size) / page);
      ASSERT_EQ(pages.end, (first + (i + 1) * size_t{info.size} - 1) / page + 1);
    }
    for (unsigned p = 0; p < chunk.count(); ++p) {
      const Objects objects = chunk.on({p, p + 1});
      unsigned begin = info.objects, end = 0;
      const auto touches = [&](unsigned i) { return chunk.of(i).first <= p && p < chunk.of(i).end; };
      for (unsigned i = objects.first == 0 ? 0 : objects.first - 1; i <= objects.end && i < info.objects; ++i) {
        if (!touches(i)) continue;
        begin = std::min(begin, i);
        end = i + 1;
      }
      if (objects.first == objects.end) {
        ASSERT_EQ(end, 0u) << "page " << p << " of " << info.size;
      } else {
        ASSERT_EQ(objects.first, begin) << "page " << p << " of " << info.size;
        ASSERT_EQ(objects.end, end) << "page " << p << " of " << info.size;
      }
    }
    const Pages inside = chunk.inside({1, info.objects - 1});
    for (unsigned p = inside.first; p < inside.end; ++p) {
      ASSERT_GE(chunk.on({p, p + 1}).first, 1u) << info.size;
      ASSERT_LE(chunk.on({p, p + 1}).end, info.objects - 1) << info.size;
    }
  }
}

// The glance must not overlook a page that what was given leaves free, whatever the other folios hold. And it has to
// tell most frees of single small objects at once, else it is for nothing.
void check_glances() {
  std::mt19937_64 random(5);
  const auto some = [&](unsigned thin) {
    uint64_t word = random();
    for (; thin != 0; --thin) word &= random();
    if (random() % 17 == 0) word &= low_mask(static_cast<unsigned>(random() % 64));
    if (random() % 19 == 0) word &= ~low_mask(static_cast<unsigned>(random() % 64));
    return word;
  };
  for (const BinId bin : all_bins()) {
    const BinInfo& info = info_of(bin);
    std::vector<uint64_t> zeros(Descriptor::bytes_for(bin) / sizeof(uint64_t));
    Descriptor& d = *new (zeros.data()) Descriptor{};
    d.bin = bin;
    d.first = first_object(reinterpret_cast<char*>(37 * kChunkBytes), info);
    const ChunkPages chunk(d);
    const FreeRun run(info);
    unsigned reported = 0, single = 0;
    for (unsigned i = 0; i < 6000; ++i) {
      const unsigned thin = i / 4 % 8;
      const unsigned places[] = {0, 1, info.folios / 2u, info.folios - 2u, info.folios - 1u};
      const unsigned folio = std::min<unsigned>(places[i % 5], info.folios - 1u);
      for (unsigned f = folio < 2 ? 0 : folio - 2; f < info.folios && f <= folio + 2; ++f) {
        d.occupancy(f).store(some(thin) & d.valid(f), order::relaxed);
      }
      const uint64_t left = d.occupancy(folio).load(order::relaxed);
      uint64_t given = d.valid(folio) & ~left & (i % 3 == 0 ? ~uint64_t{0} : random());
      if (i % 4 < 2) given &= -given;
      if (i % 4 == 1) given = lowest_bits(d.valid(folio) & ~left & random(), 1);
      if (given == 0) continue;
      const bool none = run.none(d, info, folio, given, left);
      if ((given & (given - 1)) == 0) {
        ++single;
        reported += none;
      }
      if (!none) continue;
      visit_runs(given, 1, [&](unsigned at, unsigned, uint64_t) {
        const Pages pages = chunk.of(folio * kFolioObjects + at);
        for (unsigned page = pages.first; page < pages.end; ++page) {
          ASSERT_FALSE(is_free(d, page)) << info.size << ": page " << page << " of folio " << folio << " of "
                                         << info.folios << std::hex << " " << given << " " << left;
        }
      });
    }
    if (info.size >= 32 && info.size <= 128) EXPECT_GT(2 * reported, single) << info.size;
  }
}

TEST(Residency, NoGlanceOverlooksAFreePage) {
  const size_t own = os::page_bytes();
  for (const size_t page : {size_t{4} << 10, size_t{16} << 10, size_t{64} << 10}) {
    os::known_page_bytes.store(page, order::relaxed);  // relaxed: nothing else runs
    SCOPED_TRACE(page);
    check_glances();
  }
  os::known_page_bytes.store(own, order::relaxed);  // relaxed: as above
}

TEST(Residency, PagesAheadAreASixteenthOfWhatIsBelow) {
  EXPECT_IN_FRESH_HEAP([] {
    const size_t page = os::page_bytes();
    options.dirty_floor = 64;  // no bin inherits what another one has left
    for (const size_t size : {16, 64, 208, 1024, 1088, 2112}) {
      const BinId bin = bin_of(size);
      size_t ahead_most = 0;
      const auto objects = take_chunk(bin, [&](Descriptor& d, size_t taken) {
        const size_t touched = resident_pages(d.chunk(), kChunkBytes) * page;
        const size_t folio = size_t{info_of(bin).size} * kFolioObjects + page;
        const size_t ahead = touched > taken ? touched - taken : 0;
        ahead_most = std::max(ahead_most, ahead);
        EXPECT_LE(ahead, std::max(folio, taken / 16 + 2 * page)) << size << " after " << taken;
        EXPECT_LE(ahead, std::max(folio, kAheadMost + page)) << size;
        // What is there and not taken is known to be there: all that is resident is marked.
        EXPECT_LE(touched, marked_pages(d) * page) << size << " after " << taken;
      });
      Descriptor& d = *place_of(objects.back()).descriptor;
      char* const end =
          reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(d.slot(info_of(bin).objects)), page));
      EXPECT_EQ(resident_pages(end, 2 * kChunkBytes), 0u) << size << ": nothing behind the last object";
      if (size == 64) EXPECT_GE(ahead_most, kChunkBytes / 16 / 2) << "pages do come together";
      EXPECT_TRUE(check_bin(process_store, bin));
      give(bin, objects);
    }
  });
}

TEST(Residency, PagesAheadCountTheBinsOtherChunks) {
  EXPECT_IN_FRESH_HEAP([] {
    const size_t page = os::page_bytes();
    const BinId bin = bin_of(64);
    take_chunks(bin, 4);
    size_t ahead_most = 0;
    take_chunk(bin, [&](Descriptor& d, size_t taken) {
      const size_t touched = resident_pages(d.chunk(), kChunkBytes) * page;
      ahead_most = std::max(ahead_most, touched > taken ? touched - taken : 0);
    });
    EXPECT_GE(ahead_most, kAheadMost / 2);
    EXPECT_LE(ahead_most, kAheadMost + page);
  });
}

// They would be purged before they are used.
TEST(Residency, NoPagesComeAheadWithoutDecay) {
  EXPECT_IN_FRESH_HEAP([] {
    options.decay = 0;
    const BinId bin = bin_of(64);
    take_chunks(bin, 4);
    take_chunk(bin, [&](Descriptor& d, size_t taken) {
      EXPECT_LE(resident_pages(d.chunk(), kChunkBytes) * os::page_bytes(), taken + os::page_bytes());
    });
  });
}

TEST(Residency, WhatCameAheadIsDirtyAndGoesLikeIt) {
  EXPECT_IN_FRESH_HEAP([] {
    const PageDelta delta;
    const BinId bin = bin_of(64);
    void* some[kFolioObjects];
    std::vector<void*> objects;
    // Until the last take made something resident that is not taken.
    while (delta.dirty() < static_cast<int64_t>(2 * os::page_bytes())) {
      const unsigned got = take_objects(process_store, bin, some, kFolioObjects);
      for (unsigned i = 0; i < got; ++i) *static_cast<char*>(some[i]) = 1;
      objects.insert(objects.end(), some, some + got);
      ASSERT_LT(objects.size(), info_of(bin).objects);
    }
    const auto dirty = static_cast<size_t>(delta.dirty());
    EXPECT_EQ(delta.resident(), static_cast<int64_t>(objects.size() * 64 + dirty));
    age_bins(process_store);
    EXPECT_EQ(purge_bins(process_store, PurgeWhich::kAged, kNoLimit), dirty);
    EXPECT_EQ(delta.dirty(), 0);
    Descriptor& d = *place_of(objects[0]).descriptor;
    EXPECT_EQ(marked_pages(d), objects.size() / kFolioObjects);
    give(bin, objects);
  });
}

// Objects so small that every use touches their page are taken for touched.
TEST(Residency, WhatAProgramNeverTouchesStaysUntouched) {
  EXPECT_IN_FRESH_HEAP([] {
    for (const size_t size : {1088, 2112, 3000}) {
      void* some[kFolioObjects];
      for (unsigned taken = 0; taken < info_of(bin_of(size)).objects;) {
        const unsigned got = take_objects(process_store, bin_of(size), some, kFolioObjects);
        ASSERT_NE(got, 0u);
        taken += got;
      }
      EXPECT_EQ(resident_pages(chunk_start(some[0]), kChunkBytes), 0u) << size;
    }
  });
}

TEST(Residency, AfterAPurgePagesComeTogetherAgain) {
  EXPECT_IN_FRESH_HEAP([] {
    const BinId bin = bin_of(64);
    take_chunks(bin, 4);  // so that enough pages come ahead
    auto objects = take_chunk(bin, [](Descriptor&, size_t) {});
    std::sort(objects.begin(), objects.end());
    Descriptor& d = *place_of(objects[0]).descriptor;
    // All of the upper half but one object, which no touch may take or overwrite.
    const size_t half = objects.size() / 2 / kFolioObjects * kFolioObjects, kept = half + 20 * kFolioObjects + 7;
    memset(objects[kept], 77, 64);
    std::vector<void*> given(objects.begin() + static_cast<ptrdiff_t>(half), objects.end());
    given.erase(given.begin() + static_cast<ptrdiff_t>(kept - half));
    give(bin, given);
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(marked_pages(d), half / kFolioObjects + 1);
    void* some[kFolioObjects];
    EXPECT_EQ(take_objects(process_store, bin, some, kFolioObjects - 1), kFolioObjects - 1u)
        << "the fullest folio, that of the kept";
    EXPECT_EQ(marked_pages(d), half / kFolioObjects + 1);
    EXPECT_EQ(take_objects(process_store, bin, some, 1), 1u);
    EXPECT_EQ(marked_pages(d), half / kFolioObjects + 1 + kAheadMost / os::page_bytes());
    EXPECT_EQ(resident_pages(d.chunk(), kChunkBytes), half / kFolioObjects + 1 + kAheadMost / os::page_bytes());
    for (unsigned i = 0; i < 64; ++i) ASSERT_EQ(static_cast<char*>(objects[kept])[i], 77);
    EXPECT_TRUE(check_bin(process_store, bin));
  });
}

TEST(Residency, WithoutTheSystemCallPagesComeOneByOne) {
  const int result = in_child([] {
    if (!refuse_call(SYS_madvise, EINVAL)) return kCannot;
    const PageDelta delta;
    const BinId bin = bin_of(64);
    const auto objects = take_chunk(bin, [&](Descriptor& d, size_t taken) {
      EXPECT_LE(resident_pages(d.chunk(), kChunkBytes) * os::page_bytes(), taken + os::page_bytes());
    });
    EXPECT_EQ(delta.dirty(), 0);
    EXPECT_TRUE(check_bin(process_store, bin));
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

TEST(Residency, WithoutRoomOnlyWhatIsThereIsHandedOut) {
  EXPECT_IN_FRESH_HEAP([] {
    for (const size_t size : {64, 3000, 5000, 32000}) {
      const BinId bin = bin_of(size);
      std::vector<void*> objects(2 * kFolioObjects);
      const auto most = static_cast<unsigned>(objects.size());
      for (unsigned taken = 0; taken < most;)
        taken += take_objects(process_store, bin, objects.data() + taken, most - taken);
      memory_room.most_small.set(held_bytes());
      for (void*& object : objects) {
        give(bin, {object});
        ASSERT_EQ(take_objects(process_store, bin, &object, 1), 1u) << size;
      }
      // The rest of what is there, and then no more.
      void* object = nullptr;
      unsigned more = 0;
      while (more < 1000 && take_objects(process_store, bin, &object, 1) == 1) ++more;
      EXPECT_LT(more, 300u) << size;
      EXPECT_EQ(take_objects(process_store, bin, &object, 1), 0u);
      EXPECT_LE(held_bytes(), memory_room.most_small.get() + 4096) << size;
      memory_room.most_small.set(MemoryRoom::kUnlimited);
      EXPECT_EQ(take_objects(process_store, bin, &object, 1), 1u);
      EXPECT_TRUE(check_bin(process_store, bin));
    }
  });
}

}  // namespace
