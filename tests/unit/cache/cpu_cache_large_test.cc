// CPU caches: their large objects.
#include "space/large.h"
#include "unit/cache/cpu_cache_fixture.h"
#include "unit/scripted_cpu.h"

namespace {

constexpr size_t kGranule = kGranuleBytes;
void* parked(unsigned granules) {
  void* const object = large_alloc(process_fields, granules * kGranule - kLineOffsetMost, 1, false);
  EXPECT_EQ(large_park(object), granules);
  return object;
}
uint64_t parked_bytes() { return large_stats(process_fields).parked; }

TEST_F(CpuCacheTest, ALargeObjectComesBackToWhoWantsAboutAsMuch) {
  if (os::page_bytes() > kGranule) GTEST_SKIP() << "objects are whole pages";
  void* const object = parked(15);
  EXPECT_TRUE(cpu_cache_put_large(caches, object, 15));
  EXPECT_EQ(parked_bytes(), 15 * kGranule);
  EXPECT_EQ(cpu_cache_get_large(caches, 16), nullptr) << "too small";
  EXPECT_EQ(cpu_cache_get_large(caches, 11), nullptr) << "too large";
  EXPECT_EQ(cpu_cache_get_large(caches, 12), object);
  EXPECT_EQ(cpu_cache_get_large(caches, 15), nullptr) << "it is gone";
  EXPECT_EQ(mine().large.bytes, 0u);
  large_give(object);
}

// Where it gave an object that no cache keeps is known to the thread, if it is not alone.
TEST_F(CpuCacheTest, WhereAThreadGaveItsLastObject) {
  if (os::page_bytes() > kGranule) GTEST_SKIP() << "objects are whole pages";
  constexpr unsigned kGranules = LargeList::kGranulesMost + 1;
  const auto give = [&](LargeNear& near) {
    const size_t size = kGranules * kGranule - kLineOffsetMost;
    void* const object = large_alloc(process_fields, size, 1, false, true, &near);
    ASSERT_EQ(large_park(object), kGranules);
    EXPECT_FALSE(cpu_cache_put_large(caches, object, kGranules, &near));
  };
  LargeNear near{};
  caches.depot.shared.set(false);
  give(near);
  EXPECT_EQ(near.field, nullptr) << "alone";
  depot_set_shared(caches.depot);
  give(near);
  EXPECT_NE(near.field, nullptr);
  EXPECT_EQ(parked_bytes(), 0u);
}

TEST_F(CpuCacheTest, LargeObjectsAreBoundedAndTheOldestGo) {
  if (os::page_bytes() > kGranule) GTEST_SKIP() << "objects are whole pages";
  void* const big = parked(17);
  EXPECT_FALSE(cpu_cache_put_large(caches, big, 17)) << "more than a quarter of the budget";
  EXPECT_EQ(parked_bytes(), 0u);
  void* const first = parked(16);
  EXPECT_TRUE(cpu_cache_put_large(caches, first, 16));
  for (unsigned i = 0; i < 3; ++i) EXPECT_TRUE(cpu_cache_put_large(caches, parked(16), 16));
  EXPECT_EQ(parked_bytes(), kMiB) << "the budget";
  EXPECT_FALSE(cpu_cache_put_large(caches, parked(3), 3)) << "one went for it";
  EXPECT_EQ(parked_bytes(), kMiB - 13 * kGranule);
  EXPECT_FALSE(large_place(first).starts(first));
  void* const again = large_alloc(process_fields, 16 * kGranule - kLineOffsetMost, 1, false);
  EXPECT_EQ(again, first) << "given back to its field";
  EXPECT_TRUE(large_free(again));
  for (unsigned i = 0; i < 2 * LargeList::kMost; ++i) cpu_cache_put_large(caches, parked(1), 1);
  EXPECT_EQ(mine().large.used, ~uint64_t{0}) << "all places";
  EXPECT_EQ(parked_bytes(), mine().large.bytes);
  options.cpu_cache = 0;
  EXPECT_FALSE(cpu_cache_put_large(caches, parked(1), 1));
  EXPECT_EQ(cpu_cache_get_large(caches, 1), nullptr);
  options.cpu_cache = 1024;
  EXPECT_EQ(cpu_caches_trim(caches, true), LargeList::kMost);
  EXPECT_EQ(parked_bytes(), 0u);
}

TEST_F(CpuCacheTest, TheNewestLargeObjectComesBackFirstAndTheOldestGoesFirst) {
  if (os::page_bytes() > kGranule) GTEST_SKIP() << "objects are whole pages";
  std::vector<void*> given;
  for (unsigned i = 0; i < LargeList::kMost; ++i) {
    given.push_back(parked(1));
    EXPECT_TRUE(cpu_cache_put_large(caches, given.back(), 1));
  }
  for (unsigned i = 0; i < 10; ++i) {
    EXPECT_FALSE(cpu_cache_put_large(caches, parked(1), 1)) << "the oldest went for it";
    EXPECT_FALSE(large_place(given[i]).starts(given[i]));
  }
  for (unsigned i = 0; i < 10; ++i) large_give(cpu_cache_get_large(caches, 1));
  for (unsigned i = LargeList::kMost; i-- != 10;) {
    void* const newest = cpu_cache_get_large(caches, 1);
    EXPECT_EQ(newest, given[i]);
    large_give(newest);
  }
  EXPECT_EQ(mine().large.used, 0u);
}

TEST_F(CpuCacheTest, ALargeProcessKeepsMoreLargeObjects) {
  if (os::page_bytes() > kGranule) GTEST_SKIP() << "objects are whole pages";
  count_resident(16 * kMiB);
  for (unsigned i = 0; i < 8; ++i) EXPECT_TRUE(cpu_cache_put_large(caches, parked(16), 16)) << "2 MiB";
  count_resident(-16 * kMiB);
  EXPECT_FALSE(cpu_cache_put_large(caches, parked(1), 1)) << "1 MiB again: some went";
  EXPECT_LE(parked_bytes(), kMiB);
  EXPECT_EQ(parked_bytes(), mine().large.bytes);
}

TEST_F(CpuCacheTest, LargeObjectsThatNobodyWantsGoAtTheSecondTrim) {
  const unsigned granules = static_cast<unsigned>(round_up(kGranule, os::page_bytes()) / kGranule);
  EXPECT_TRUE(cpu_cache_put_large(caches, parked(granules), granules));
  EXPECT_EQ(cpu_caches_trim(caches, false), 0u);
  EXPECT_EQ(cpu_caches_trim(caches, false), 1u);
  EXPECT_EQ(parked_bytes(), 0u);
}

TEST_F(CpuCacheTest, AChildGivesLargeObjectsBackAlsoThoseOnTheirWay) {
  const unsigned granules = static_cast<unsigned>(round_up(kGranule, os::page_bytes()) / kGranule);
  cpu_cache_put_large(caches, parked(granules), granules);
  void* const on_its_way = parked(granules);
  EXPECT_EQ(in_child([] {
              cpu_caches_after_fork(caches, process_fields, true);
              if (parked_bytes() != 0 || mine().large.used != 0 || !large_check(process_fields)) return kFailed;
              return cpu_cache_get_large(caches, 1) == nullptr ? kPassed : kFailed;
            }),
            kPassed);
  EXPECT_EQ(parked_bytes(), 2 * granules * kGranule);
  large_give(on_its_way);
}

TEST_F(CpuCacheTest, ThreadsNeverShareALargeObject) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      std::minstd_rand random(t + 1);
      void* held[8] = {};
      for (unsigned round = 0; round < rounds(20000); ++round) {
        void*& object = held[random() % 8];
        if (object != nullptr) {
          EXPECT_EQ(*static_cast<uint64_t*>(object), t);
          const unsigned granules = large_park(object);
          ASSERT_NE(granules, 0u);
          cpu_cache_put_large(caches, object, granules);
        }
        const size_t size = 40000 + random() % 400000;
        object = cpu_cache_get_large(caches, large_granules(size));
        if (object != nullptr) {
          object = large_unpark(object, size, 1, false);
        } else {
          object = large_alloc(process_fields, size, 1, false);
        }
        *static_cast<uint64_t*>(object) = t;
        if (round % 1000 == 0) cpu_caches_trim(caches, random() % 2 == 0);
      }
      for (void* object : held) EXPECT_TRUE(object == nullptr || large_free(object));
    });
  }
  for (std::thread& thread : threads) thread.join();
  cpu_caches_trim(caches, true);
  EXPECT_EQ(large_stats(process_fields).objects, 0u);
  EXPECT_EQ(parked_bytes(), 0u);
  EXPECT_TRUE(large_check(process_fields));
}

// ---- Small and medium ones ----

}  // namespace
