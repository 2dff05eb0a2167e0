#include "store/residency.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "config/options.h"
#include "os/os.h"
#include "space/huge_pace.h"
#include "space/room.h"
#include "store/bin.h"
#include "store/check.h"
#include "store/occupancy.h"
#include "store/purge.h"
#include "unit/child.h"
#include "unit/mappings.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr size_t kNoLimit = ~size_t{0};
constexpr size_t kAheadMost = 64 * kKiB;

size_t resident_pages(const char* start, size_t bytes) {
  const size_t page = os::page_bytes();
  std::vector<unsigned char> there(bytes / page);
  EXPECT_EQ(mincore(const_cast<char*>(start), bytes, there.data()), 0);
  return static_cast<size_t>(std::count_if(there.begin(), there.end(), [](unsigned char p) { return p & 1; }));
}

bool is_huge(const Descriptor& d) { return d.backing() == Backing::kHuge; }

size_t marked_pages(Descriptor& d) {
  size_t count = 0;
  for (unsigned w = 0; w < kPageWords; ++w) count += popcount(d.resident(w).load(order::relaxed));
  return count;
}

// Takes the whole of a new chunk of the bin, a folio at a time, and writes to the first byte of each object. Calls
// check(descriptor, bytes taken so far) after each folio.
template <class Check>
std::vector<void*> take_chunk(BinId bin, Check&& check) {
  std::vector<void*> objects;
  void* some[kFolioObjects];
  unsigned got;
  while ((got = take_objects_in_open_chunks(process_store, bin, some, kFolioObjects)) != 0) {
    objects.insert(objects.end(), some, some + got);
  }
  const size_t before = objects.size();
  while (objects.size() - before < info_of(bin).objects) {
    got = take_objects(process_store, bin, some, kFolioObjects);
    EXPECT_NE(got, 0u);
    for (unsigned i = 0; i < got; ++i) *static_cast<char*>(some[i]) = 1;
    objects.insert(objects.end(), some, some + got);
    check(*place_of(some[0]).descriptor, (objects.size() - before) * info_of(bin).size);
  }
  return objects;
}

std::vector<void*> take_chunks(BinId bin, unsigned count) {
  std::vector<void*> objects;
  for (unsigned chunk = 0; chunk < count; ++chunk) {
    const auto more = take_chunk(bin, [](Descriptor&, size_t) {});
    objects.insert(objects.end(), more.begin(), more.end());
  }
  return objects;
}

void give(BinId bin, const std::vector<void*>& objects) {
  for (size_t i = 0; i < objects.size(); i += kFolioObjects) {
    give_objects(bin, &objects[i], static_cast<unsigned>(std::min<size_t>(kFolioObjects, objects.size() - i)), "test");
  }
}

// In children, in which no bin has chunks yet and nothing is left behind.
template <class Body>
int in_fresh_heap(Body&& body) {
  return in_child([&] {
    if (!can_populate()) return kCannot;
    body();
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
}

#define EXPECT_IN_FRESH_HEAP(...)                           \
  do {                                                      \
    const int result = in_fresh_heap(__VA_ARGS__);          \
    if (result == kCannot) GTEST_SKIP() << kCannotPopulate; \
    EXPECT_EQ(result, kPassed);                             \
  } while (false)

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
      if (size == 64) EXPECT_GE(ahead_most, kAheadMost / 2) << "pages do come together";
      EXPECT_TRUE(check_bin(process_store, bin));
      give(bin, objects);
    }
  });
}

TEST(Residency, WhatCameAheadIsDirtyAndGoesLikeIt) {
  EXPECT_IN_FRESH_HEAP([] {
    const PageDelta delta;
    const BinId bin = bin_of(64);
    void* some[kFolioObjects];
    std::vector<void*> objects;
    // Until the last take made something resident that is not taken.
    while (delta.dirty() < static_cast<int64_t>(32 * kKiB)) {
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
    EXPECT_EQ(marked_pages(d), half / kFolioObjects + 1 + half / kFolioObjects / 16);
    EXPECT_EQ(resident_pages(d.chunk(), kChunkBytes), half / kFolioObjects + 1 + half / kFolioObjects / 16);
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

// So that what is written late comes as huge pages.
TEST(Residency, HugePagesStayAdvisedUntilAPurge) {
  EXPECT_IN_FRESH_HEAP([] {
    const BinId bin = bin_of(64);
    std::vector<void*> objects;
    for (unsigned chunk = 0; chunk < 12; ++chunk) {
      note_huge_page(0, true);  // however slow the one before was
      const auto more = take_chunk(bin, [](Descriptor&, size_t) {});
      objects.insert(objects.end(), more.begin(), more.end());
    }
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

TEST(Residency, NoNewHugePagesAfterSoManyRuns) {  // so that mappings do not run out
  EXPECT_IN_FRESH_HEAP([] {
    runs_begun.set(kRunsMost);
    const BinId bin = bin_of(64);
    const auto none_is_huge = [&] {
      visit_chunks(process_store, bin, [&](Descriptor& d) {
        EXPECT_NE(d.backing(), Backing::kHuge);
        return true;
      });
    };
    note_huge_page(0, true);
    give(bin, take_chunks(bin, 8));
    none_is_huge();
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    take_chunks(bin, 8);
    none_is_huge();
  });
}

TEST(Residency, ABinOfManyFullChunksGetsHugePages) {
  EXPECT_IN_FRESH_HEAP([] {
    for (const size_t size : {16, 64, 3000}) {
      const PageDelta delta;
      const BinId bin = bin_of(size);
      std::vector<void*> objects;
      unsigned huge = 0;
      for (unsigned chunk = 0; chunk < 12; ++chunk) {
        note_huge_page(0, true);  // however slow the one before was
        bool first = true;
        const auto more = take_chunk(bin, [&](Descriptor& d, size_t) {
          if (first && is_huge(d)) {
            EXPECT_EQ(marked_pages(d), ChunkPages(d).count());
            ++huge;
          }
          first = false;
        });
        if (chunk < 4) EXPECT_EQ(huge, 0u) << size << ": chunk " << chunk;
        objects.insert(objects.end(), more.begin(), more.end());
        EXPECT_TRUE(check_bin(process_store, bin));
      }
      // None where the kernel has no huge pages; else all from some chunk on.
      if (huge != 0) EXPECT_GE(huge, 4u) << size;
      give(bin, objects);
      // What lies outside of the objects goes with the huge page.
      EXPECT_LE(delta.dirty(), delta.resident());
      EXPECT_GE(delta.dirty() + static_cast<int64_t>(huge * 16 * kPageBytesLeast), delta.resident());
      purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
      EXPECT_EQ(delta.resident(), 0) << size;
    }
  });
}

TEST(Residency, TheEndsOfAHugePageGoWithTheFirstPart) {
  EXPECT_IN_FRESH_HEAP([] {
    const BinId bin = bin_of(64);
    const std::vector<void*> objects = take_chunks(bin, 5);  // the last one has huge pages
    Descriptor& last = *place_of(objects.back()).descriptor;
    if (!is_huge(last)) return;  // the kernel has none
    memset(last.chunk(), 0, kPageBytesLeast);
    memset(last.chunk() + kChunkBytes - 8, 0, 8);
    // All but one object in the middle.
    std::vector<void*> given(objects.end() - static_cast<ptrdiff_t>(info_of(bin).objects), objects.end());
    std::sort(given.begin(), given.end());
    given.erase(given.begin() + static_cast<ptrdiff_t>(given.size() / 2));
    give(bin, given);
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(resident_pages(last.chunk(), kChunkBytes), 1u);
    EXPECT_TRUE(check_bin(process_store, bin));
  });
}

TEST(Residency, AHugePageGoesAsAWhole) {
  EXPECT_IN_FRESH_HEAP([] {
    const BinId bin = bin_of(64);
    const std::vector<void*> objects = take_chunks(bin, 5);  // the last one has huge pages
    const Descriptor& last = *place_of(objects.back()).descriptor;
    if (!is_huge(last)) return;  // the kernel has none
    const PageDelta delta;
    const std::vector<void*> given(objects.end() - static_cast<ptrdiff_t>(info_of(bin).objects), objects.end());
    give(bin, given);
    EXPECT_EQ(purge_bins(process_store, PurgeWhich::kAll, kNoLimit), kChunkBytes);
    EXPECT_EQ(delta.calls(), 1u);
    EXPECT_EQ(resident_pages(last.chunk(), kChunkBytes), 0u);
  });
}

TEST(Residency, AHugePageThatComesBackCountsAsAWhole) {
  EXPECT_IN_FRESH_HEAP([] {
    const BinId bin = bin_of(64);
    const std::vector<void*> objects = take_chunks(bin, 5);  // the last one has huge pages
    Descriptor& last = *place_of(objects.back()).descriptor;
    if (!is_huge(last)) return;  // the kernel has none
    const PageDelta delta;
    give(bin, {objects.end() - static_cast<ptrdiff_t>(info_of(bin).objects), objects.end()});
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(marked_pages(last), 0u);
    void* object = nullptr;
    ASSERT_EQ(take_objects(process_store, bin, &object, 1), 1u);
    EXPECT_EQ(chunk_start(object), last.chunk());
    EXPECT_EQ(marked_pages(last), ChunkPages(last).count());
    EXPECT_EQ(delta.resident(), 0);
    const auto page = static_cast<int64_t>(os::page_bytes());
    EXPECT_EQ(delta.dirty(), ChunkPages(last).in_use().count() * page - page);
    EXPECT_TRUE(check_bin(process_store, bin));
    // What is not used of it goes.
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(marked_pages(last), 1u);
    EXPECT_EQ(delta.dirty(), 0);
  });
}

// Where a page of the chunk is there, small ones come in place of a huge one.
TEST(Residency, WhereNoHugePageComesWhatIsCountedIsThere) {
  EXPECT_IN_FRESH_HEAP([] {
    const std::vector<void*> objects = take_chunks(bin_of(64), 5);  // the last one has huge pages
    Descriptor& last = *place_of(objects.back()).descriptor;
    if (!is_huge(last)) return;  // the kernel has none
    note_huge_page(0, true);     // no pause, if it was slow
    give(last.bin, {objects.end() - static_cast<ptrdiff_t>(last.info().objects), objects.end()});
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    memset(last.chunk() + kChunkBytes / 2, 0, 8);
    void* object = nullptr;
    ASSERT_EQ(take_objects(process_store, last.bin, &object, 1), 1u);
    EXPECT_EQ(chunk_start(object), last.chunk());
    EXPECT_EQ(marked_pages(last), ChunkPages(last).count());
    EXPECT_EQ(resident_pages(last.chunk(), kChunkBytes), ChunkPages(last).count());
  });
}

// With small pages, which came in a pause, the kernel has a table of them, until all that it covers goes at once.
TEST(Residency, AChunkThatShallBeHugeGoesAsAWhole) {
  EXPECT_IN_FRESH_HEAP([] {
    const BinId bin = bin_of(64);
    note_huge_page(60'000'000, true);  // a pause
    const std::vector<void*> objects = take_chunks(bin, 5);
    Descriptor& last = *place_of(objects.back()).descriptor;
    ASSERT_FALSE(is_huge(last));
    note_huge_page(0, true);
    const PageDelta delta;
    std::vector<void*> given(objects.end() - static_cast<ptrdiff_t>(info_of(bin).objects), objects.end());
    std::sort(given.begin(), given.end());
    const auto middle = given.begin() + static_cast<ptrdiff_t>(given.size() / 2);
    give(bin, {given.begin(), middle});
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_GT(delta.calls(), 3u) << "a part in steps";
    const PageDelta rest;
    const size_t there = marked_pages(last);
    const uint64_t purged = page_counts.purged.get();
    give(bin, {middle, given.end()});
    EXPECT_EQ(purge_bins(process_store, PurgeWhich::kAll, kNoLimit), there * os::page_bytes());
    EXPECT_EQ(page_counts.purged.get() - purged, there * os::page_bytes());
    EXPECT_EQ(rest.calls(), 1u);
    EXPECT_EQ(marked_pages(last), 0u);
    EXPECT_EQ(resident_pages(last.chunk(), kChunkBytes), 0u);
  });
}

// Beside a purge that takes absent pages with it, which nothing gave back.
TEST(Residency, WhatWasPurgedNeverFalls) {
  EXPECT_IN_FRESH_HEAP([] {
    const BinId bin = bin_of(64);
    note_huge_page(60'000'000, true);  // a pause
    std::vector<void*> objects = take_chunks(bin, 5);
    std::sort(objects.begin(), objects.end());
    const auto middle = objects.end() - static_cast<ptrdiff_t>(info_of(bin).objects / 2);
    const auto first = objects.end() - static_cast<ptrdiff_t>(info_of(bin).objects);
    std::atomic<bool> ends{false}, fell{false};
    std::thread reader([&] {
      for (uint64_t last = 0; !ends.load(); last = page_counts.purged.get()) {
        if (page_counts.purged.get() < last) fell = true;
      }
    });
    for (unsigned turn = 0; turn < rounds(100); ++turn) {
      for (const auto& [from, to] : {std::pair{first, middle}, std::pair{middle, objects.end()}}) {
        give(bin, {from, to});
        purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
      }
      for (auto at = first; at != objects.end();) at += take_objects(process_store, bin, &*at, kFolioObjects);
      std::sort(first, objects.end());
    }
    ends = true;
    reader.join();
    EXPECT_FALSE(fell);
  });
}

// The kernel refuses to purge all of it then.
TEST(Residency, ALockedPageKeepsNoOtherOfAChunkThatShallBeHuge) {
  EXPECT_IN_FRESH_HEAP([] {
    const BinId bin = bin_of(64);
    note_huge_page(60'000'000, true);  // a pause
    const std::vector<void*> objects = take_chunks(bin, 5);
    Descriptor& last = *place_of(objects.back()).descriptor;
    void* const locked = last.chunk() + kChunkBytes / 2;
    if (!lock_page(locked)) return;
    give(bin, {objects.end() - static_cast<ptrdiff_t>(info_of(bin).objects), objects.end()});
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    const auto step = static_cast<size_t>(kPurgeRunBytes / os::page_bytes());
    EXPECT_LE(marked_pages(last), step);
    EXPECT_LE(resident_pages(last.chunk(), kChunkBytes), marked_pages(last));
    unlock_page(locked);
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_TRUE(check_bin(process_store, bin));
  });
}

TEST(Residency, NothingComesBeforeItIsNeededWhereMemoryIsTight) {
  EXPECT_IN_FRESH_HEAP([] {
    memory_room.tight.set(true);
    const BinId bin = bin_of(64);
    const PageDelta delta;
    for (unsigned chunk = 0; chunk < 6; ++chunk) {
      const auto objects = take_chunk(bin, [](Descriptor& d, size_t) { EXPECT_FALSE(is_huge(d)); });
      EXPECT_EQ(delta.dirty(), 0);
    }
    memory_room.tight.set(false);
  });
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

TEST(Residency, NoHugePagesWhereTheyAreSwitchedOff) {
  EXPECT_IN_FRESH_HEAP([] {
    options.huge_pages = kHugePagesNever;
    const BinId bin = bin_of(64);
    for (unsigned chunk = 0; chunk < 6; ++chunk) {
      const auto objects = take_chunk(bin, [](Descriptor& d, size_t) { EXPECT_FALSE(is_huge(d)); });
      EXPECT_LE(resident_pages(chunk_start(objects.back()), kChunkBytes), kChunkBytes / os::page_bytes());
    }
  });
}

}  // namespace
