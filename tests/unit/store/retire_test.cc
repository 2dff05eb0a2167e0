#include "store/retire.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "os/os.h"
#include "space/chunks.h"
#include "space/large.h"
#include "space/metadata.h"
#include "store/bin.h"
#include "store/check.h"
#include "store/commit.h"
#include "store/occupancy.h"
#include "store/purge.h"
#include "store/residency.h"
#include "unit/child.h"
#include "unit/core/heap.h"
#include "unit/store/purge_bins.h"
#include "unit/store/take_give.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

std::vector<void*> take(BinId bin, size_t n) {
  const std::vector<void*> objects = take_many(bin, n);
  for (void* object : objects) *static_cast<char*>(object) = 1;
  return objects;
}

void give(BinId bin, const std::vector<void*>& objects) { give_many(bin, objects); }

unsigned chunks_of(BinId bin) {
  unsigned n = 0;
  visit_chunks(process_store, bin, [&](Descriptor&) {
    ++n;
    return true;
  });
  return n;
}

int run_in_child(auto&& body) {
  return in_child([&] { return body(), ::testing::Test::HasFailure() ? kFailed : kPassed; });
}
#define EXPECT_IN_CHILD(...) EXPECT_EQ(run_in_child(__VA_ARGS__), kPassed)

TEST(Retire, EveryChunkOfWhichNothingIsTaken) {
  for (const BinId bin : all_bins()) {
    EXPECT_IN_CHILD([&] {
      const PageDelta delta;
      const auto objects = take(bin, 5 * info_of(bin).objects);
      ASSERT_EQ(objects.size(), size_t{5} * info_of(bin).objects);
      EXPECT_EQ(retire_free_chunks(process_store), 0u) << "nothing is free";
      const size_t reserved = chunks_in_use();
      // One object of the third chunk stays.
      std::vector<void*> given = objects;
      void* const kept = given[info_of(bin).objects * 5 / 2];
      memset(kept, 77, info_of(bin).size);
      given.erase(given.begin() + info_of(bin).objects * 5 / 2);
      give(bin, given);
      EXPECT_EQ(retire_free_chunks(process_store), 4u);
      EXPECT_EQ(chunks_of(bin), 1u);
      EXPECT_EQ(chunks_in_use(), reserved) << "vacant";
      for (void* object : given) {
        if (chunk_start(object) != chunk_start(kept)) ASSERT_EQ(place_of(object).descriptor, nullptr);
      }
      EXPECT_TRUE(check_bin(process_store, bin));
      for (size_t i = 0; i < info_of(bin).size; ++i) ASSERT_EQ(static_cast<char*>(kept)[i], 77);
      // The bin goes on, and other bins may have what it left.
      const BinId other = bin_of(info_of(bin).size == 3008 ? 100 : 3000);
      const auto others = take(other, 3 * info_of(other).objects);
      const auto more = take(bin, 4 * info_of(bin).objects);
      EXPECT_EQ(more.size(), size_t{4} * info_of(bin).objects);
      EXPECT_TRUE(check_bin(process_store, bin));
      EXPECT_TRUE(check_bin(process_store, other));
      give(bin, more);
      give(other, others);
      give(bin, {kept});
      retire_free_chunks(process_store);
      EXPECT_EQ(delta.resident(), 0);
      EXPECT_EQ(delta.dirty(), 0);
    });
  }
}

TEST(Retire, NewChunksReadAsZero) {
  EXPECT_IN_CHILD([] {
    const BinId bin = bin_of(100);
    for (unsigned turn = 0; turn < 3; ++turn) {
      const auto objects = take(bin, 3 * info_of(bin).objects);
      for (void* object : objects) memset(object, 1, 100);
      give(bin, objects);
      EXPECT_EQ(retire_free_chunks(process_store), 3u);
      const BinId other = bin_of(16 * kKiB);
      void* object = nullptr;
      ASSERT_EQ(take_objects(process_store, other, &object, 1), 1u);
      EXPECT_TRUE(all_zero(object, 16 * kKiB));
      give(other, {object});
      EXPECT_EQ(retire_free_chunks(process_store), 1u);
    }
  });
}

// The folio hints of the one before may still be set, and who sees one set raises no more.
TEST(Retire, TheNextChunkAtAPlaceHasItsHints) {
  EXPECT_IN_CHILD([] {
    for (const size_t size : {size_t{100}, size_t{200}, size_t{300}}) {
      const BinId bin = bin_of(size);
      std::vector<void*> objects = take(bin, size_t{8} * kFolioObjects);
      for (size_t i = 0; i < objects.size(); i += 2) give_object(bin, objects[i], "test");
      for (size_t i = 1; i < objects.size(); i += 2) give_object(bin, objects[i], "test");
      retire_free_chunks(process_store);
      objects = take(bin, size_t{8} * kFolioObjects);
      for (unsigned i = 0; i < 30; ++i) {
        give_object(bin, objects[size_t{3} * kFolioObjects + i], "test");
        ASSERT_TRUE(check_bin(process_store, bin)) << i << " of " << size;
      }
      objects.erase(objects.begin() + 3 * kFolioObjects, objects.begin() + 3 * kFolioObjects + 30);
      give(bin, objects);
    }
  });
}

// Takers, givers and purges of the bin meet chunks that go and come back, often at the same address.
TEST(Retire, BesideThreadsThatTakeAndGive) {
  if (kThreadSanitizer) GTEST_SKIP() << "it does not see that address space came from the kernel anew";
  EXPECT_IN_CHILD([] {
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> retired{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        const BinId bin = bin_of(t == 0 ? 1000 : 16000);
        while (!stop) {
          auto objects = take(bin, info_of(bin).objects * 3 / 2);
          for (void* object : objects) memset(object, static_cast<int>(t + 1), info_of(bin).size);
          for (void* object : objects) {
            const auto* bytes = static_cast<const unsigned char*>(object);
            if (bytes[0] != t + 1 || bytes[info_of(bin).size - 1] != t + 1) abort();
          }
          give(bin, objects);
        }
      });
    }
    threads.emplace_back([&] {
      while (!stop) purge_bins(process_store, PurgeWhich::kAll, ~size_t{0});
    });
    while (retired < rounds(500)) retired += retire_free_chunks(process_store);
    stop = true;
    for (auto& thread : threads) thread.join();
    EXPECT_TRUE(check_bin(process_store, bin_of(1000)));
    EXPECT_TRUE(check_bin(process_store, bin_of(16000)));
  });
}

// Chunks of which nothing is taken, in a process that keeps nothing free.
std::vector<void*> leave_chunks(BinId bin, unsigned chunks) {
  options.dirty_floor = 0;
  const auto objects = take(bin, size_t{chunks} * info_of(bin).objects);
  for (void* object : objects) memset(object, 0xEE, info_of(bin).size);
  give(bin, objects);
  return objects;
}

// A bin with a full chunk: only such a one inherits.
void fill_chunk(BinId bin) { take(bin, info_of(bin).objects); }

bool is_among(const void* object, const std::vector<void*>& objects) {
  return std::any_of(objects.begin(), objects.end(),
                     [&](const void* other) { return chunk_start(other) == chunk_start(object); });
}

TEST(Inherit, EachBinInheritsFreeChunksWithTheirPages) {
  for (const BinId bin : all_bins()) {
    EXPECT_IN_CHILD([&] {
      const BinId first = bin_of(info_of(bin).size == 3008 ? 100 : 3000);
      fill_chunk(bin);
      const PageDelta delta;
      const auto left = leave_chunks(first, 4);
      const int64_t resident = delta.resident(), dirty = delta.dirty();
      const size_t in_use = chunks_in_use();
      void* object = nullptr;
      ASSERT_EQ(take_objects(process_store, bin, &object, 1), 1u);
      EXPECT_TRUE(is_among(object, left));
      EXPECT_EQ(chunks_of(first), 3u);
      EXPECT_EQ(chunks_in_use(), in_use);
      EXPECT_EQ(delta.resident(), resident);
      EXPECT_LT(delta.dirty(), dirty);
      EXPECT_TRUE(check_bin(process_store, first));
      EXPECT_TRUE(check_bin(process_store, bin));
      // All of it is there, and the bin takes the other chunks too.
      std::vector<void*> objects = take(bin, size_t{4} * info_of(bin).objects - 1);
      EXPECT_EQ(chunks_in_use(), in_use);
      EXPECT_LE(delta.resident(), resident + static_cast<int64_t>(4 * kColours * os::page_bytes()));
      objects.push_back(object);
      for (size_t i = 0; i < objects.size(); ++i) memset(objects[i], static_cast<int>(i % 251), info_of(bin).size);
      for (size_t i = 0; i < objects.size(); ++i) {
        const auto* const bytes = static_cast<const unsigned char*>(objects[i]);
        ASSERT_TRUE(bytes[0] == i % 251 && bytes[info_of(bin).size - 1] == i % 251);
      }
      EXPECT_TRUE(check_bin(process_store, bin));
      give(bin, objects);
      purge_bins(process_store, PurgeWhich::kAll, ~size_t{0});
      EXPECT_TRUE(check_bin(process_store, bin));
      EXPECT_EQ(delta.resident(), 0);
      EXPECT_EQ(delta.dirty(), 0);
    });
  }
}

// What large objects have left, too.
TEST(Inherit, EachBinInheritsWhatLargeObjectsLeft) {
  for (const BinId bin : all_bins()) {
    EXPECT_IN_CHILD([&] {
      options.dirty_floor = 0;
      const auto own = take(bin, info_of(bin).objects);
      const PageDelta delta;
      char* const large = static_cast<char*>(large_alloc(process_fields, 3 * kChunkBytes, 64, false));
      memset(large, 0xEE, 3 * kChunkBytes);
      ASSERT_TRUE(large_free(large));
      const int64_t resident = delta.resident(), dirty = delta.dirty();
      void* object = nullptr;
      ASSERT_EQ(take_objects(process_store, bin, &object, 1), 1u);
      ASSERT_TRUE(object >= large - kLineOffsetMost && object < large + 3 * kChunkBytes);
      EXPECT_EQ(delta.resident(), resident);
      EXPECT_LT(delta.dirty(), dirty);
      std::vector<void*> objects = take(bin, info_of(bin).objects - 1);
      EXPECT_LE(delta.resident(), resident + static_cast<int64_t>(kColours * os::page_bytes()));
      objects.push_back(object);
      for (void* o : objects) memset(o, 1, info_of(bin).size);
      // But for a last folio within a page that is in use: what is free there does not count as resident.
      const auto others =
          std::count_if(objects.begin(), objects.end(), [&](void* o) { return chunk_start(o) != chunk_start(object); });
      const unsigned last = info_of(bin).objects % kFolioObjects;
      ASSERT_LE(others, last * info_of(bin).size < os::page_bytes() ? last : 0) << "one is enough, bin " << index(bin);
      EXPECT_TRUE(check_bin(process_store, bin));
      EXPECT_TRUE(large_check(process_fields));
      // It goes back where it came from.
      give(bin, objects);
      EXPECT_EQ(retire_free_chunks(process_store), others == 0 ? 1u : 2u);
      EXPECT_TRUE(large_check(process_fields));
      large_purge(process_fields, true, ~size_t{0});
      EXPECT_EQ(delta.resident(), 0);
      EXPECT_EQ(delta.dirty(), 0);
    });
  }
}

// Not only a take that found nothing at all.
TEST(Inherit, WhatACallStillWantsAfterWarmObjectsIsWarmToo) {
  EXPECT_IN_CHILD([] {
    const BinId bin = bin_of(1500);  // of objects so large that no page comes ahead
    fill_chunk(bin);
    const auto some = take(bin, kFolioObjects / 2), left = leave_chunks(bin_of(3000), 3);
    constexpr unsigned kWant = kFolioObjects - 1;  // with one more the half of it would be enough
    void* objects[kWant];
    EXPECT_EQ(take_objects(process_store, bin, objects, kWant), kWant);
    EXPECT_FALSE(is_among(objects[0], left));
    EXPECT_TRUE(is_among(objects[kWant - 1], left));
  });
}

TEST(Inherit, OnlyWhereNothingIsTakenAndHalfIsResident) {
  EXPECT_IN_CHILD([] {
    const BinId bin = bin_of(3000), other = bin_of(100);
    fill_chunk(other);
    const auto left = leave_chunks(bin, 2);
    // One object of each chunk is taken, in its middle.
    void* kept[2] = {};
    unsigned n = 0;
    for (void* object : take(bin, left.size())) {
      if (n < 2 && object == left[(2 * n + 1) * left.size() / 4]) {
        kept[n++] = object;
      } else {
        give_object(bin, object, "test");
      }
    }
    ASSERT_EQ(n, 2u);
    auto objects = take(other, 1);
    EXPECT_FALSE(is_among(objects[0], left));
    give(bin, {kept[0], kept[1]});
    purge_bins(process_store, PurgeWhich::kNow, kChunkBytes / 2 + kChunkBytes / 8);
    purge_bins(process_store, PurgeWhich::kNow, kChunkBytes / 2 + kChunkBytes / 8);
    const auto more = take(other, info_of(other).objects);
    EXPECT_FALSE(is_among(more.back(), left));
  });
}

// Two of three pages are resident: no larger object would be.
TEST(Inherit, NotWhereHolesAreEverywhere) {
  EXPECT_IN_CHILD([] {
    const BinId bin = aligned_bin(4096, 4096);
    for (const size_t size : {size_t{32} * kKiB, size_t{5000}, size_t{100}}) fill_chunk(bin_of(size));
    const auto left = leave_chunks(bin, 4);
    auto objects = take(bin, left.size());
    std::sort(objects.begin(), objects.end());
    std::vector<void*> purged, resident;
    for (size_t i = 0; i < objects.size(); ++i) (i % 3 == 0 ? purged : resident).push_back(objects[i]);
    give(bin, purged);
    purge_bins(process_store, PurgeWhich::kAll, ~size_t{0});
    give(bin, resident);
    for (const size_t size : {size_t{32} * kKiB, size_t{5000}, size_t{100}}) {
      const auto got = take(bin_of(size), 100);
      ASSERT_EQ(got.size(), 100u);
      EXPECT_FALSE(is_among(got[0], left)) << size;
      EXPECT_TRUE(check_bin(process_store, bin_of(size)));
    }
  });
}

// One that wants a few objects would keep a whole chunk from all others.
TEST(Inherit, NotByABinWithoutAFullChunk) {
  EXPECT_IN_CHILD([] {
    const auto left = leave_chunks(bin_of(3000), 3);
    for (const BinId bin : {bin_of(1000), bin_of(16000)}) {
      for (void* object : take(bin, info_of(bin).objects)) ASSERT_FALSE(is_among(object, left));
      ASSERT_TRUE(is_among(take(bin, 1)[0], left));
    }
  });
}

// By a bin of larger objects, of which the chunks have remnants: each is used up before the next one is inherited.
TEST(Inherit, WhatIsInheritedIsUsedUp) {
  EXPECT_IN_CHILD([] {
    const auto left = leave_chunks(bin_of(9000), 12);
    const BinId bin = bin_of(8256);
    const auto own = take(bin, info_of(bin).objects);
    const unsigned before = chunks_of(bin), each = info_of(bin).objects;
    const auto objects = take(bin, size_t{6} * each);
    EXPECT_EQ(objects.size(), size_t{6} * each);
    EXPECT_LE(chunks_of(bin), before + 7);
    EXPECT_TRUE(check_bin(process_store, bin));
  });
}

TEST(Inherit, NotOfWhatMayStay) {
  EXPECT_IN_CHILD([] {
    fill_chunk(bin_of(100));
    const auto left = leave_chunks(bin_of(3000), 3);
    options.dirty_floor = 8;
    EXPECT_FALSE(is_among(take(bin_of(100), 1)[0], left));
  });
}

// What the kernel does not purge is lost: a vacant chunk reads as zero.
TEST(Inherit, WithoutMetadataNothingIsHandedOnUnpurged) {
  for (const bool locked : {false, true}) {
    const int result = in_child([&] {
      const BinId bin = bin_of(3000);
      fill_chunk(bin_of(16));
      const auto left = leave_chunks(bin, 1);
      // By the call itself: sanitizers replace the function by one that does nothing.
      if (locked && syscall(SYS_mlock, left[left.size() / 2], 1) != 0) return kCannot;
      if (!refuse_call(SYS_mprotect, ENOMEM)) return kCannot;
      while (metadata_alloc(64) != nullptr) {
      }
      void* object = nullptr;
      if (take_objects(process_store, bin_of(16), &object, 1) != 0 && is_among(object, left)) return kFailed;
      if (chunks_of(bin) != 0) return kFailed;
      // It is vacant, or lost.
      bool is_new = false, is_vacant = false;
      for (char* c; (c = acquire_chunk(false, &is_new)) != nullptr && !is_new;) is_vacant |= c == chunk_start(left[0]);
      return is_vacant != locked ? kPassed : kFailed;
    });
    if (result == kCannot) GTEST_SKIP() << "no memory may be locked here, or no call refused";
    EXPECT_EQ(result, kPassed) << locked;
  }
}

// Nobody can claim the pages before the first object and behind the last: another bin may have objects there by then.
TEST(Retire, AChunkThatLeavesItsBinIsNotPurgedOutsideItsObjects) {
  EXPECT_IN_CHILD([] {
    const BinId bin = bin_of(3000);
    const std::vector<void*> objects = take(bin, size_t{kColours} * info_of(bin).objects);
    const auto of = std::find_if(objects.begin(), objects.end(), [](void* o) {
      const Descriptor& d = *place_of(o).descriptor;
      return d.chunk() + os::page_bytes() <= d.first;
    });
    ASSERT_NE(of, objects.end());
    Descriptor& d = *place_of(*of).descriptor;
    ASSERT_EQ(commit_chunk(d), Commit::kDone);
    memset(d.chunk(), 7, kChunkBytes);
    note_whole(d);
    // All but the first object are given back, and claimed by whoever is about to take the chunk over.
    for (void* object : objects) {
      if (chunk_start(object) == d.chunk() && object != d.first) give_object(bin, object, "test");
    }
    ASSERT_TRUE(close_commit(d));
    PageChange change;
    ASSERT_TRUE(claim_objects(d, {1, d.info().objects}, change));
    purge_bins(process_store, PurgeWhich::kNow, ~size_t{0});
    EXPECT_EQ(d.chunk()[0], 7);
    EXPECT_EQ(d.chunk()[kChunkBytes - 1], 7);
    // Where it stays, they go.
    release_objects(d, {1, d.info().objects}, change);
    open_commit(d);
    purge_bins(process_store, PurgeWhich::kNow, ~size_t{0});
    EXPECT_EQ(d.chunk()[0], 0);
    EXPECT_TRUE(close_commit(d)) << "the purge has opened it again";
  });
}

// By turns a chunk is one bin's and another's: no new descriptor for each turn.
TEST(Inherit, ManyTurns) {
  EXPECT_IN_CHILD([] {
    options.dirty_floor = 0;
    size_t metadata = 0, in_use = 0;
    for (unsigned turn = 0; turn < 120; ++turn) {
      for (const size_t size : {size_t{100}, size_t{3000}, size_t{20000}, size_t{16}}) {
        const auto objects = take(bin_of(size), 4 * kChunkBytes / size);
        for (void* object : objects) memset(object, static_cast<int>(turn), size);
        give(bin_of(size), objects);
        ASSERT_TRUE(check_bin(process_store, bin_of(size)));
      }
      if (turn == 60) metadata = metadata_bytes(), in_use = chunks_in_use();
    }
    EXPECT_LE(chunks_in_use(), in_use + 2);
    EXPECT_LT(in_use, 40u);
    EXPECT_LE(metadata_bytes(), metadata + 64 * kKiB);
  });
}

// Else the bin that is left would open a new chunk for each one that it has lost.
TEST(Inherit, ABinGivesUpAColdChunkForAWarmOne) {
  EXPECT_IN_CHILD([] {
    const BinId bins[] = {bin_of(3000), bin_of(20000)};
    for (const BinId bin : bins) fill_chunk(bin);
    size_t most = 0;
    for (unsigned turn = 0; turn < 40; ++turn) {
      // One leaves three chunks, of which the other one inherits some, and all are purged.
      const BinId bin = bins[turn % 2], heir = bins[1 - turn % 2];
      leave_chunks(bin, 3);
      const size_t before = chunks_of(bin);
      give(heir, take(heir, size_t{2} * info_of(heir).objects));
      ASSERT_LT(chunks_of(bin), before);
      purge_bins(process_store, PurgeWhich::kNow, ~size_t{0});
      for (const BinId b : bins) ASSERT_TRUE(check_bin(process_store, b));
      if (turn == 3) most = chunks_in_use();
    }
    EXPECT_LE(chunks_in_use(), most);
    EXPECT_LE(most, 2u + 3u + 3u);
  });
}

// Also where most of its chunks cannot be given up: of each turn four objects stay, and pages beside them are purged.
TEST(Inherit, NotWhereMuchOfItsOwnIsPurged) {
  EXPECT_IN_CHILD([] {
    const BinId bin = bin_of(100);
    for (unsigned turn = 0; turn < 60; ++turn) {
      leave_chunks(bin_of(3000), 4);
      auto objects = take(bin, size_t{4} * info_of(bin).objects);
      for (const auto share : {8, 5, 3, 2})
        objects.erase(objects.begin() + static_cast<ptrdiff_t>(objects.size()) / share);
      give(bin, objects);
      purge_bins(process_store, PurgeWhich::kNow, ~size_t{0});
    }
    EXPECT_LE(chunks_of(bin), 8u);
  });
}

TEST(Inherit, BesideThreadsThatTakeGiveAndPurge) {
  EXPECT_IN_CHILD([] {
    options.dirty_floor = 0;
    std::atomic<unsigned> inherited{0}, running{3};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (unsigned turn = 0; turn < rounds(120); ++turn) {
          const BinId bin = bin_of((turn + t) % 3 == 0 ? 1000 : (turn + t) % 3 == 1 ? 16000 : 48);
          const unsigned before = chunks_of(bin);
          auto objects = take(bin, info_of(bin).objects * 5 / 2);
          if (chunks_of(bin) > before) ++inherited;
          for (void* object : objects) memset(object, static_cast<int>(t + 1), info_of(bin).size);
          for (void* object : objects) {
            const auto* bytes = static_cast<const unsigned char*>(object);
            if (bytes[0] != t + 1 || bytes[info_of(bin).size - 1] != t + 1) abort();
          }
          give(bin, objects);
        }
        --running;
      });
    }
    threads.emplace_back([&] {
      while (running != 0) purge_bins(process_store, PurgeWhich::kNow, 8 * kMiB);
    });
    for (auto& thread : threads) thread.join();
    for (const size_t size : {size_t{1000}, size_t{16000}, size_t{48}}) {
      EXPECT_TRUE(check_bin(process_store, bin_of(size)));
    }
    EXPECT_GT(inherited, 0u);
    // Not the sum of what each bin has had: three threads hold at most three chunks each, of any bin.
    EXPECT_LT(chunks_in_use(), 40u);
  });
}

// Where address space is short, chunks are lent by fields of large objects, and go back there.
TEST(Retire, AChunkThatAFieldHasLentIsTheFieldsAgain) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "they need address space of their own";
  EXPECT_IN_CHILD([] {
    std::vector<char*> large;
    while (large_stats(process_fields).reserved < 2 * kFieldBytesMost) {
      large.push_back(static_cast<char*>(large_alloc(process_fields, kLargeMost, 64, false)));
    }
    const uint64_t reserved = large_stats(process_fields).reserved;
    const BinId bin = bin_of(1000);
    std::vector<void*> objects(reserved / 1000);  // no more memory is needed
    large.reserve(reserved / kMiB);
    ASSERT_TRUE(limit_address_space(0));
    for (char* object : large) ASSERT_TRUE(large_free(object));
    size_t n = 0;
    while (unsigned got = take_objects(process_store, bin, &objects[n], kFolioObjects)) {
      for (const size_t end = n + got; n < end; ++n) memset(objects[n], 1, 1000);
    }
    objects.resize(n);
    const size_t chunks = chunks_of(bin);
    ASSERT_GT(chunks * kChunkBytes, reserved * 9 / 10);
    give(bin, objects);
    EXPECT_EQ(retire_free_chunks(process_store), chunks);
    EXPECT_TRUE(large_check(process_fields));
    for (void* object : objects) {
      ASSERT_EQ(chunk_code(object), kCodeLarge);
      ASSERT_FALSE(large_free(object));
    }
    // All of it is the fields' again, and zero.
    large.clear();
    while (void* object = large_alloc(process_fields, 5 * kMiB, 64, true)) large.push_back(static_cast<char*>(object));
    EXPECT_GT(large.size() * 5 * kMiB, reserved * 8 / 10);
    for (char* object : large) ASSERT_TRUE(large_free(object));
    large.clear();
    while (void* object = large_alloc(process_fields, kMiB, 64, true)) large.push_back(static_cast<char*>(object));
    EXPECT_GT(large.size(), 2 * kFieldBytesMost / (kMiB + kGranuleBytes) * 9 / 10);
    for (char* object : large) {
      ASSERT_TRUE(all_zero(object, kMiB));
      memset(object, 1, kMiB);
    }
    for (char* object : large) ASSERT_TRUE(large_free(object));
    EXPECT_TRUE(large_check(process_fields));
    EXPECT_EQ(large_stats(process_fields).reserved, reserved);
  });
}

// A limit on address space, filled with one size: all other sizes have the room afterwards.
TEST(Retire, AddressSpaceServesOtherSizesThen) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "they need address space of their own";
  EXPECT_IN_CHILD([] {
    const rlimit limit{size_t{1} << 30, size_t{1} << 30};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    std::vector<void*> objects, others;
    objects.reserve(size_t{1} << 24);
    others.reserve(size_t{1} << 21);  // bins pass chunks on, and leave no address space to the libc's malloc
    while (void* object = alloc(64)) objects.push_back(object);
    EXPECT_GT(objects.size() * 64, size_t{256} << 20);
    for (void* object : objects) free_object(object);
    const size_t held = objects.size() * 64;
    for (const size_t size : {size_t{200}, size_t{3000}, size_t{30000}, 100 * kKiB, 5 * kMiB, 20 * kMiB}) {
      size_t sum = 0;
      for (void* object; sum < held / 3 && (object = alloc(size)) != nullptr; sum += size) others.push_back(object);
      EXPECT_GE(sum, held / 3) << size;  // a huge object takes up to twice its size of it
      for (void* object : others) free_object(object);
      others.clear();
    }
  });
}

// One size and another have all address space by turns: after some, no turn needs more metadata.
TEST(Retire, DescriptorsServeAgainAtTheirPlaces) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "they need address space of their own";
  EXPECT_IN_CHILD([] {
    std::vector<void*> objects;
    objects.reserve(size_t{1} << 23);
    ASSERT_TRUE(limit_address_space(100 * kMiB));
    std::vector<size_t> metadata;
    metadata.reserve(20);
    for (unsigned turn = 0; turn < 20; ++turn) {
      const size_t size = turn % 2 == 0 ? 16 : 5 * kMiB;
      while (void* object = alloc(size)) objects.push_back(memset(object, static_cast<int>(turn + 1), size));
      EXPECT_GT(objects.size() * size, 50 * kMiB) << turn;
      for (void* object : objects) ASSERT_EQ(static_cast<char*>(object)[size - 1], static_cast<char>(turn + 1));
      for (void* object : objects) free_object(object);
      objects.clear();
      metadata.push_back(metadata_bytes());
    }
    EXPECT_EQ(metadata[19], metadata[9]);
    EXPECT_TRUE(check_bin(process_store, bin_of(16)));
  });
}

}  // namespace
