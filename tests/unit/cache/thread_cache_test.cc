#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "space/pages.h"
#include "unit/cache/thread_cache_fixture.h"
#include "unit/child.h"
#include "unit/scripted_cpu.h"
#include "unit/stderr_capture.h"

namespace {

TEST_F(ThreadCacheTest, EveryPathIsClosedAtFirst) {
  on_thread([] {
    EXPECT_EQ(thread_state.phase, Phase::kNew);
    for (const Slot* cursor : thread_cursors.cursor) EXPECT_TRUE(closed(cursor));
    EXPECT_EQ(*closed_slots, nullptr) << "empty";
    EXPECT_TRUE(aligned_to(closed_slots, kMagazineBytes)) << "and full";
  });
}

// What is freed in disorder, from all over a heap larger than a cache, goes home, but for what a CPU cache holds and a
// bundle; what is freed in order is handed on.
TEST_F(ThreadCacheTest, OnlyWhatIsInOrderIsHandedOn) {
  const BinId small = bin_of(48);
  depot_set_shared(process_caches.depot);
  const auto cached_after = [&](bool in_order) {
    uint64_t cached = 0;
    on_thread([&] {
      std::vector<void*> objects = pop_many(small, 20000);
      std::sort(objects.begin(), objects.end());
      if (!in_order) std::shuffle(objects.begin(), objects.end(), std::minstd_rand(1));
      push_all(small, objects);
      cached = cpu_caches_objects(process_caches, small) + depot_objects(process_caches.depot, small);
    });
    cpu_caches_trim(process_caches, true);
    depot_trim(process_caches.depot, true);
    return cached;
  };
  EXPECT_GT(cached_after(true), 5000u);
  EXPECT_LE(cached_after(false), 2 * (bundle_objects(small) + kMagazineObjects));
}

// A full magazine for which there is no empty one goes home, and the thread goes on with it: few frees are slow.
TEST_F(ThreadCacheTest, OverflowsWithoutMemoryForMagazines) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "they need address space of their own";
  int result = kCannot;
  on_thread([&] {
    result = in_child([] {
      constexpr unsigned kObjects = 20000;
      const BinId small = bin_of(200);
      std::vector<void*> objects = pop_many(small, kObjects);
      const rlimit limit{4096, 4096};
      if (setrlimit(RLIMIT_DATA, &limit) != 0) return kCannot;
      while (magazines_get() != nullptr) {
      }
      const uint32_t before = thread_cache()->activity.get();
      push_all(small, objects);
      return thread_cache()->activity.get() - before < kObjects / 20 ? kPassed : kFailed;
    });
  });
  if (result == kCannot) GTEST_SKIP() << "no limit on data can be set here";
  EXPECT_EQ(result, kPassed);
}

TEST_F(ThreadCacheTest, MadeAtFirstUseAndReusedAfterItsThread) {
  ThreadCache* first = nullptr;
  on_thread([&] {
    const unsigned before = thread_count();
    first = thread_cache();
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(thread_cache(), first);
    EXPECT_EQ(thread_state.phase, Phase::kCached);
    EXPECT_EQ(thread_count(), before + 1);
    EXPECT_EQ(first->cursors.load(order::relaxed), &thread_cursors);
    bool listed = false;
    for (ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) listed = listed || c == first;
    EXPECT_TRUE(listed);
    expect_budget_adds_up();
  });
  EXPECT_EQ(first->cursors.load(order::relaxed), nullptr);
  on_thread([&] { EXPECT_EQ(thread_cache(), first); });
}

TEST_F(ThreadCacheTest, CodesThatAreNoBinStayClosed) {
  on_thread([] {
    for (const BinId each : all_bins()) {
      std::vector<void*> objects = pop_many(each, 20);
      push_all(each, objects);
    }
    EXPECT_TRUE(closed(thread_cursors.cursor[0]));
    for (unsigned code = kBins; code < kCodes; ++code) EXPECT_TRUE(closed(thread_cursors.cursor[code]));
  });
}

TEST_F(ThreadCacheTest, ObjectsAreDifferentAndComeBackLastInFirstOut) {
  on_thread([] {
    std::vector<void*> objects = pop_many(bin, 500);
    EXPECT_EQ(std::set<void*>(objects.begin(), objects.end()).size(), 500u);
    for (void* object : objects) EXPECT_TRUE(place_of(object).taken());
    push(bin, objects[0]);
    push(bin, objects[1]);
    EXPECT_EQ(pop(bin), objects[1]);
    EXPECT_EQ(pop(bin), objects[0]);
    push_all(bin, objects);
  });
}

TEST_F(ThreadCacheTest, AnObjectOfAnotherThreadIsNotHandedOutNext) {
  for (const size_t size : {8, 16, 32, 48}) {
    const BinId each = bin_of(size);
    void* others[2];  // neighbours, one for each of two threads
    ASSERT_EQ(take_objects(process_store, each, others, 2), 2u);
    for (void* foreign : others) {
      on_thread([&] {
        push(each, foreign);
        std::vector<void*> own = pop_many(each, 3);
        EXPECT_EQ(std::count(own.begin(), own.end(), foreign), 0) << size;
        push_all(each, own);
        // It is still in the magazine.
        const uint64_t n = thread_cache_objects(thread_cache(), each);
        own = pop_many(each, static_cast<unsigned>(n));
        EXPECT_EQ(std::count(own.begin(), own.end(), foreign), 1) << size;
        EXPECT_EQ(std::set<void*>(own.begin(), own.end()).size(), n);
        push_all(each, own);
      });
    }
  }
}

// Around a full magazine and around an empty one: the first call of the other kind moves half a magazine, and then
// there is room for both; what the CPU cache has may be half a magazine, too.
TEST_F(ThreadCacheTest, MallocsAndFreesByTurnsAreServedFromTheMagazine) {
  on_thread([] {
    for (unsigned i = 0; i < 20; ++i) {
      std::vector<void*> objects = pop_many(bin, 200);
      push_all(bin, objects);
    }
    ASSERT_EQ(cache_of(bin).capacity, kMagazineObjects);
    for (const unsigned before : {1u, 30u, 61u, 62u, 63u, 124u, 125u, 126u, 127u, 150u}) {
      std::vector<void*> held = pop_many(bin, before);
      const uint32_t slow = thread_cache()->activity.get();
      for (unsigned i = 0; i < 1000; ++i) {
        std::vector<void*> more = pop_many(bin, 14);
        push_all(bin, more);
      }
      EXPECT_LE(thread_cache()->activity.get() - slow, 3u) << before;
      push_all(bin, held);
      std::vector<void*> freed = pop_many(bin, 200);
      for (unsigned i = 0; i < before; ++i) {
        push(bin, freed.back());
        freed.pop_back();
      }
      const uint32_t slow_again = thread_cache()->activity.get();
      for (unsigned i = 0; i < 1000; ++i) {
        std::vector<void*> more(freed.begin(), freed.begin() + 14);
        for (void* object : more) push(bin, object);
        more = pop_many(bin, 14);
        std::copy(more.begin(), more.end(), freed.begin());
      }
      EXPECT_LE(thread_cache()->activity.get() - slow_again, 3u) << before;
      push_all(bin, freed);
    }
  });
}

// Whatever the thread holds when it begins: it comes to hold what a turn takes, and no call is slow any more.
TEST_F(ThreadCacheTest, TurnsThatAMagazineHoldsComeToRest) {
  on_thread([] {
    for (unsigned i = 0; i < 20; ++i) {
      std::vector<void*> objects = pop_many(bin, 200);
      push_all(bin, objects);
    }
    ASSERT_EQ(cache_of(bin).capacity, kMagazineObjects);
    for (const unsigned turn : {60u, 70u, 80u, 90u, 100u, 110u, 120u}) {
      for (const unsigned before : {0u, 20u, 40u, 60u, 80u, 100u, 120u}) {
        std::vector<void*> held = pop_many(bin, 150);
        std::vector<void*> freed(held.begin(), held.begin() + before);
        push_all(bin, freed);
        held.erase(held.begin(), held.begin() + before);
        cache_of(bin).calls = 0;  // as after a sweep
        const auto turns = [&](unsigned n) {
          for (unsigned i = 0; i < n; ++i) {
            std::vector<void*> objects = pop_many(bin, turn);
            push_all(bin, objects);
          }
        };
        turns(20);
        const uint32_t slow = thread_cache()->activity.get();
        turns(100);
        EXPECT_EQ(thread_cache()->activity.get(), slow) << turn << " a turn, " << before << " before";
        push_all(bin, held);
      }
    }
  });
}

// Where a turn takes more than a magazine holds, half a magazine moves at a time, not ever less.
TEST_F(ThreadCacheTest, TurnsThatAMagazineDoesNotHoldMoveMuchAtATime) {
  on_thread([] {
    for (const unsigned turn : {128u, 140u, 160u, 200u}) {
      const auto turns = [&](unsigned n) {
        for (unsigned i = 0; i < n; ++i) {
          std::vector<void*> objects = pop_many(bin, turn);
          push_all(bin, objects);
        }
      };
      turns(100);
      cache_of(bin).calls = 0;  // as after a sweep
      const uint32_t slow = thread_cache()->activity.get();
      turns(100);
      EXPECT_LE(thread_cache()->activity.get() - slow, 100 * 4u + 64) << turn << " a turn";
    }
  });
}

TEST_F(ThreadCacheTest, ObjectsAreCountedWhereTheyWait) {
  on_thread([] {
    for (unsigned i = 0; i < 10; ++i) {
      std::vector<void*> objects = pop_many(bin, 200);
      push_all(bin, objects);
    }
    const uint64_t taken = taken_objects(bin);
    EXPECT_EQ(thread_cache_objects(thread_cache(), bin) + cpu_caches_objects(process_caches, bin) +
                  depot_objects(process_caches.depot, bin),
              taken);
    std::vector<void*> objects = pop_many(bin, 30);
    EXPECT_EQ(thread_cache_objects(thread_cache(), bin) + cpu_caches_objects(process_caches, bin) +
                  depot_objects(process_caches.depot, bin),
              taken_objects(bin) - 30);
    push_all(bin, objects);
  });
}

TEST_F(ThreadCacheTest, DrainGivesEverythingToTheFolios) {
  on_thread([] {
    for (const BinId each : all_bins()) {
      std::vector<void*> objects = pop_many(each, 130);
      push_all(each, objects);
    }
    thread_cache_drain(thread_cache(), "test");
    for (const BinId each : all_bins()) {
      EXPECT_EQ(thread_cache_objects(thread_cache(), each), 0u);
      EXPECT_EQ(taken_objects(each),
                cpu_caches_objects(process_caches, each) + depot_objects(process_caches.depot, each))
          << "bin " << index(each);
    }
    std::vector<void*> objects = pop_many(bin, 100);
    push_all(bin, objects);
  });
}

// What is written when a magazine with these objects has filled up and leaves.
std::string reported_when_full(BinId each, const std::vector<void*>& pushed) {
  StderrCapture capture;
  for (void* object : pushed) push(each, object);
  for (unsigned i = 0; i < 70; ++i) push(each, pop(each));
  std::vector<void*> objects = pop_many(each, 300);
  push_all(each, objects);
  thread_cache_drain(thread_cache(), "drain");
  cpu_caches_trim(process_caches, true);
  depot_trim(process_caches.depot, true);
  return capture.stop();
}

TEST_F(ThreadCacheTest, MisuseInAMagazineIsReportedOnceBeforeOrWhenItIsEmptied) {
  options.errors = kErrorsWarn;
  for (const size_t size : {64, 1000, 5000}) {
    on_thread([size] {
      const BinId each = bin_of(size);
      for (unsigned i = 0; i < 8; ++i) {
        std::vector<void*> objects = pop_many(each, 200);  // so that magazines have room
        push_all(each, objects);
      }
      for (const unsigned between : {1u, 2u, 5u, 20u}) {
        std::vector<void*> objects = pop_many(each, 130);
        objects.insert(objects.begin() + 40 + between, objects[39]);
        const std::string reported = reported_when_full(each, objects);
        EXPECT_NE(reported.find("double free of a"), std::string::npos) << size << ", " << between << " between";
        EXPECT_EQ(std::count(reported.begin(), reported.end(), '\n'), 1) << reported;
        EXPECT_EQ(taken_objects(each), 0u) << size << ", " << between << " between";
      }
      for (const size_t inside : {size_t{8}, size_t{16}, size / 2}) {
        std::vector<void*> objects = pop_many(each, 130);
        char* const object = static_cast<char*>(objects[50]);
        objects[50] = object + inside;
        const std::string reported = reported_when_full(each, objects);
        EXPECT_NE(reported.find("not the start of an object: inside a"), std::string::npos) << size << ", " << inside;
        EXPECT_EQ(std::count(reported.begin(), reported.end(), '\n'), 1) << reported;
        EXPECT_EQ(taken_objects(each), 1u) << "the object itself lives on";
        push(each, object);
      }
    });
    cpu_caches_trim(process_caches, true);
    depot_trim(process_caches.depot, true);
  }
}

TEST_F(ThreadCacheTest, AThreadThatEndsHandsOnWhatItCached) {
  std::set<void*> freed;
  uint64_t cached = 0;
  on_thread([&] {
    for (unsigned i = 0; i < 10; ++i) {
      std::vector<void*> objects = pop_many(bin, 200);
      freed.insert(objects.begin(), objects.end());
      push_all(bin, objects);
    }
    cached = thread_cache_objects(thread_cache(), bin);
  });
  EXPECT_GT(cached, 0u);
  EXPECT_GE(cpu_caches_objects(process_caches, bin) + depot_objects(process_caches.depot, bin), cached)
      << "in CPU cache and depot, not in the folios";
  EXPECT_EQ(cpu_caches_objects(process_caches, bin) + depot_objects(process_caches.depot, bin), taken_objects(bin));
  on_thread([&] {
    std::vector<void*> objects = pop_many(bin, 60);
    for (void* object : objects) EXPECT_EQ(freed.count(object), 1u) << "the next thread gets them";
    push_all(bin, objects);
  });
}

TEST_F(ThreadCacheTest, OfAWatchedBinAThreadThatEndsHandsOnNothing) {
  const auto handed_on = [] {
    return cpu_caches_objects(process_caches, bin) + depot_objects(process_caches.depot, bin);
  };
  const auto watch = options.watch;
  options.watch = 1000000;
  std::vector<void*> objects;
  uint64_t before = 0;
  on_thread([&] {
    objects = pop_many(bin, 200);
    EXPECT_GT(thread_cache_objects(thread_cache(), bin), 0u);
    before = handed_on();
  });
  EXPECT_EQ(handed_on(), before);
  EXPECT_EQ(taken_objects(bin), before + objects.size());
  give_objects(bin, objects.data(), static_cast<unsigned>(objects.size()), "test");
  options.watch = watch;
}

// The libc may hand a thread what was meant for another one that was on its stack before (thread_cache_end).
TEST_F(ThreadCacheTest, AThreadEndsNoCacheButItsOwn) {
  on_thread([&] {
    ThreadCache* const mine = thread_cache();
    ASSERT_NE(mine, nullptr);
    const unsigned before = thread_count();
    ThreadCursors* const cursors = mine->cursors.load(order::relaxed);
    on_thread([&] { thread_cache_end(mine); });
    EXPECT_EQ(thread_count(), before);
    EXPECT_EQ(mine->cursors.load(order::relaxed), cursors);
    on_thread([&] {
      ASSERT_NE(thread_cache(), nullptr);
      EXPECT_NE(thread_cache(), mine);
      thread_cache_end(mine);
      EXPECT_EQ(thread_state.phase, Phase::kCached);
      EXPECT_EQ(thread_count(), before + 1);
    });
    EXPECT_EQ(thread_count(), before);
  });
}

// A key made after Folio's: its destructor runs later, as those of a program's own do.
TEST_F(ThreadCacheTest, LastDestructorsAreServedWithoutACache) {
  static std::atomic<unsigned> served{0};
  on_thread([] {
    std::vector<void*> objects = pop_many(bin, 10);
    push_all(bin, objects);
    static pthread_key_t key;
    pthread_key_create(&key, [](void*) {
      EXPECT_EQ(thread_state.phase, Phase::kEnded);
      EXPECT_EQ(thread_cache(), nullptr);
      for (const Slot* cursor : thread_cursors.cursor) EXPECT_TRUE(closed(cursor));
      ++served;
    });
    pthread_setspecific(key, &key);
  });
  EXPECT_EQ(served, 1u);
}

}  // namespace
