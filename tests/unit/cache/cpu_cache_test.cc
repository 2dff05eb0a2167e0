#include "unit/cache/cpu_cache_fixture.h"
#include "unit/scripted_cpu.h"

namespace {

TEST_F(CpuCacheTest, AMagazineComesBackWhole) {
  Magazine* const magazine = magazine_of(bin, kWhole);
  const std::vector<void*> objects = objects_of(magazine);
  EXPECT_EQ(cpu_cache_put(caches, bin, magazine, "test"), nullptr) << "kept";
  EXPECT_EQ(cpu_caches_objects(caches, bin), kWhole);
  expect_exact();
  EXPECT_EQ(cpu_cache_get(caches, bin_of(1000), kWhole, nullptr), nullptr) << "another bin's list";
  ASSERT_EQ(cpu_cache_get(caches, bin, kWhole, nullptr), magazine);
  EXPECT_EQ(objects_of(magazine), objects);
  EXPECT_EQ(cpu_cache_get(caches, bin, kWhole, nullptr), nullptr);
  expect_exact();
  drain_list(bin, magazine);
}

TEST_F(CpuCacheTest, FewObjectsAreMergedIntoWhatWaits) {
  Magazine* const large = magazine_of(bin, 100);
  EXPECT_EQ(cpu_cache_put(caches, bin, large, "test"), nullptr);
  Magazine* const small = magazine_of(bin, 10);
  const std::vector<void*> objects = objects_of(small);
  EXPECT_EQ(cpu_cache_put(caches, bin, small, "test"), small) << "it came back";
  EXPECT_EQ(small->count(), 0u);
  magazines_put(small);
  EXPECT_EQ(large->count(), 110u);
  expect_exact();
  // Where they do not fit they wait on their own.
  Magazine* const more = magazine_of(bin, 20);
  EXPECT_EQ(cpu_cache_put(caches, bin, more, "test"), nullptr);
  EXPECT_EQ(large->count(), 110u);
  expect_exact();
}

TEST_F(CpuCacheTest, MergedMagazinesKeepToTheirBinsMost) {
  for (const BinId each : all_bins()) {
    const unsigned most = info_of(each).magazine_most;
    if (most < 2) continue;
    for (unsigned i = 0; i < 3 * most; ++i) {
      if (Magazine* empty = cpu_cache_put(caches, each, magazine_of(each, 1), "test")) magazines_put(empty);
      Magazine* m = mine().lists[index(each)].first.load(order::relaxed);
      for (; m != nullptr; m = m->next()) ASSERT_LE(m->count(), most);
    }
    cpu_caches_trim(caches, true);
    depot_trim(caches.depot, true);
  }
}

TEST_F(CpuCacheTest, WhoWantsFewGetsFew) {
  Magazine* const waiting = magazine_of(bin, 50);
  const std::vector<void*> objects = objects_of(waiting);
  cpu_cache_put(caches, bin, waiting, "test");
  Magazine* const into = empty_magazine();
  ASSERT_EQ(cpu_cache_get(caches, bin, 8, into), into);
  EXPECT_EQ(into->count(), 8u);
  EXPECT_EQ(into->bottom(), 8u) << "with room for no more";
  EXPECT_EQ(objects_of(into), std::vector<void*>(objects.begin(), objects.begin() + 8)) << "the ones on top";
  expect_exact();
  drain_list(bin, into);
  // Who wants all that there is, or a whole one, gets the magazine itself.
  Magazine* const other = empty_magazine();
  EXPECT_EQ(cpu_cache_get(caches, bin, kWholeLeast, other), waiting);
  EXPECT_EQ(waiting->count(), 42u);
  drain_list(bin, waiting);
  Magazine* const few = magazine_of(bin, 5);
  cpu_cache_put(caches, bin, few, "test");
  EXPECT_EQ(cpu_cache_get(caches, bin, 5, other), few);
  drain_list(bin, few);
  magazines_put(other);
}

// What a thread caches is bounded by twice what it has room for.
TEST_F(CpuCacheTest, NobodyGetsMoreThanTwiceWhatIsWanted) {
  Magazine* const into = empty_magazine();
  for (const bool busy : {false, true}) {
    for (unsigned want = 1; want <= kWhole; ++want) {
      const auto get = [&] {
        Magazine* const got = cpu_cache_get(caches, bin, want, into);
        ASSERT_NE(got, nullptr);
        EXPECT_LE(got->count(), 2 * want);
        EXPECT_GE(got->count(), want);
        give_objects(bin, got->top(), got->count(), "test");
        got->set_next(nullptr);
        if (got != into) magazines_put(got);
      };
      cpu_cache_put(caches, bin, magazine_of(bin, kWhole), "test");
      if (busy) {
        cpu_caches_trim(caches, true);
        mine().section.run(false, [&] {
          cpu_cache_put(caches, bin, magazine_of(bin, kWhole), "test");
          get();
        });
      } else {
        get();
      }
      cpu_caches_trim(caches, true);
      depot_trim(caches.depot, true);
    }
  }
  magazines_put(into);
}

TEST_F(CpuCacheTest, ManyOfOneBinGoToTheDepotAsABundle) {
  const unsigned most = bundle_objects(bin) / kWhole;
  for (unsigned i = 0; i < most; ++i) cpu_cache_put(caches, bin, magazine_of(bin, kWhole), "test");
  EXPECT_EQ(depot_objects(caches.depot, bin), 0u);
  EXPECT_EQ(cpu_caches_objects(caches, bin), most * kWhole);
  cpu_cache_put(caches, bin, magazine_of(bin, kWhole), "test");
  EXPECT_EQ(depot_objects(caches.depot, bin), (most + 1) * kWhole) << "all at once";
  EXPECT_EQ(cpu_caches_objects(caches, bin), 0u);
  expect_exact();
  // And come back as one.
  Magazine* const magazine = cpu_cache_get(caches, bin, kWhole, nullptr);
  ASSERT_NE(magazine, nullptr);
  EXPECT_EQ(depot_objects(caches.depot, bin), 0u);
  EXPECT_EQ(cpu_caches_objects(caches, bin), most * kWhole);
  expect_exact();
  magazine->set_next(nullptr);
  drain_list(bin, magazine);
}

TEST_F(CpuCacheTest, WhatIsOverTheBudgetGoesToTheDepot) {
  options.cpu_cache = 256;
  for (unsigned round = 0; round < 20; ++round) {
    for (const BinId each : {bin_of(200), bin_of(500), bin_of(1000), bin_of(5000), bin_of(9000)}) {
      const unsigned most = info_of(each).magazine_most;
      if (Magazine* empty = cpu_cache_put(caches, each, magazine_of(each, most), "test")) magazines_put(empty);
      EXPECT_LE(mine().bytes, 256 * kKiB);
      expect_exact();
    }
  }
}

// Of a process that has had one thread so far.
class CpuCacheOfOneThread : public CpuCacheTest {
 protected:
  CpuCacheOfOneThread() : CpuCacheTest(false) {}
  // Magazines of neighbours, until not all of what was put is there; returns how many objects that is.
  unsigned put_until_some_go() {
    unsigned put = 0;
    while (cpu_caches_objects(caches, bin) == put && put < 10000) {
      cpu_cache_put(caches, bin, magazine_of(bin, kMagazineUsual), "test");
      put += kMagazineUsual;
    }
    return put;
  }
};

TEST_F(CpuCacheOfOneThread, KeepsMoreThanABundleAndThenTheNewerHalf) {
  const unsigned put = put_until_some_go();
  const auto half = static_cast<uint64_t>(options.cpu_cache) << 9;
  EXPECT_LE((put - kMagazineUsual) * info_of(bin).size, half);
  EXPECT_GT(put * info_of(bin).size, half);
  const auto left = static_cast<unsigned>(cpu_caches_objects(caches, bin));
  EXPECT_LT(left, put / 2 + kMagazineUsual);
  EXPECT_GE(left, put / 2);
  EXPECT_EQ(taken_objects(bin), left) << "the others are in their folios";
  expect_exact();
  // What it kept is what came last: the next to come back.
  Magazine* const last = magazine_of(bin, kMagazineUsual);
  const std::vector<void*> objects = objects_of(last);
  cpu_cache_put(caches, bin, last, "test");
  ASSERT_EQ(cpu_cache_get(caches, bin, kMagazineUsual, nullptr), last);
  EXPECT_EQ(objects_of(last), objects);
  last->set_next(nullptr);
  drain_list(bin, last);
}

// More magazines than a bundle can count.
TEST_F(CpuCacheOfOneThread, AListOfHundredsOfMagazinesGoesInSeveralBundles) {
  const BinId tiny = bin_of(8);
  constexpr unsigned kMagazines = 350;
  const auto put = [&](unsigned magazines) {
    for (unsigned m = 0; m < magazines; ++m) cpu_cache_put(caches, tiny, magazine_of(tiny, kMagazineUsual), "test");
  };
  put(kMagazines);
  EXPECT_EQ(cpu_caches_objects(caches, tiny), kMagazines * kMagazineUsual);
  EXPECT_GE(cpu_caches_trim(caches, true), kMagazines);
  EXPECT_EQ(cpu_caches_objects(caches, tiny), 0u);
  expect_exact();
  put(kMagazines);
  depot_set_shared(caches.depot);
  EXPECT_EQ(cpu_caches_objects(caches, tiny), kMagazines * kMagazineUsual);
  put(1);
  EXPECT_EQ(taken_objects(tiny), (kMagazines + 1) * kMagazineUsual) << "in the CPU cache or the depot";
  EXPECT_LT(cpu_caches_objects(caches, tiny), kMagazines * kMagazineUsual);
  put(5);
  expect_exact();
}

// Whatever the budget: the list's count of magazines has 16 bits, and a call walks over it.
TEST_F(CpuCacheOfOneThread, AListHasItsMost) {
  options.cpu_cache = 1048576;
  const BinId tiny = bin_of(8);
  unsigned most = 0;
  for (unsigned m = 0; m < 6000; ++m) {
    cpu_cache_put(caches, tiny, magazine_of(tiny, kMagazineUsual), "test");
    const unsigned magazines = mine().lists[index(tiny)].magazines;
    most = magazines > most ? magazines : most;
  }
  EXPECT_GE(most, 300u);
  EXPECT_LE(most, 450u);
  expect_exact();
}

// Also where the newest magazine has one object, which says nothing of order.
TEST_F(CpuCacheOfOneThread, WhatLiesScatteredGoesAtABundle) {
  // Each object far from the one before it in its magazine.
  constexpr unsigned kStride = 512, kMagazines = kBundleMost + 1;
  for (const unsigned in_last : {kMagazineUsual, 1u}) {
    std::vector<void*> rest = take_many(bin, kStride * kMagazineUsual);
    for (unsigned m = 0; m < kMagazines; ++m) {
      Magazine* const magazine = magazine_of(bin, 0);
      for (unsigned i = 0; i < (m + 1 < kMagazines ? kMagazineUsual : in_last); ++i) {
        void*& object = rest[m + i * kStride];
        Slot* const top = magazine->top() - 1;
        *top = object;
        magazine->park(top);
        object = nullptr;
      }
      EXPECT_EQ(cpu_caches_objects(caches, bin), m * kMagazineUsual);
      cpu_cache_put(caches, bin, magazine, "test");
    }
    EXPECT_EQ(cpu_caches_objects(caches, bin), 0u);
    expect_exact();
    for (void* object : rest) {
      if (object != nullptr) give_object(bin, object, "test");
    }
  }
}

TEST_F(CpuCacheTest, AnyMixKeepsToTheBudget) {
  std::minstd_rand random(1);
  std::vector<BinId> bins;
  for (const BinId each : all_bins()) {
    if (info_of(each).magazine_most >= 2) bins.push_back(each);
  }
  BinId used[3] = {};
  for (const unsigned budget : {64u, 256u, 1024u}) {
    options.cpu_cache = budget;
    for (unsigned round = 0; round < rounds(4000); ++round) {
      // Three bins for some time, the larger ones more often: a magazine of them is a good part of the budget.
      if (round % 200 == 0) {
        for (BinId& b : used) b = bins[bins.size() - 1 - random() % (random() % bins.size() + 1)];
      }
      const BinId each = used[random() % 3];
      if (random() % 4 == 0) {
        if (Magazine* m = cpu_cache_get(caches, each, kWhole, nullptr)) {
          m->set_next(nullptr);
          drain_list(each, m);
        }
      } else {
        const auto count = static_cast<unsigned>(1 + random() % info_of(each).magazine_most);
        if (Magazine* empty = cpu_cache_put(caches, each, magazine_of(each, count), "test")) magazines_put(empty);
        EXPECT_LE(mine().bytes, budget * kKiB);
      }
      expect_exact();
      if (HasFailure()) FAIL() << "round " << round;
    }
  }
}

TEST_F(CpuCacheTest, GettingKeepsToTheBudgetToo) {
  options.cpu_cache = 512;
  std::vector<BinId> used;
  for (const BinId each : all_bins()) {
    const unsigned most = info_of(each).magazine_most;
    if (most < 2) continue;
    used.push_back(each);
    Magazine* const bundle = bundle_of(each, std::max(1u, bundle_objects(each) / most), most);
    depot_push(caches.depot, each, bundle, bundle_bytes(each, bundle), "test");
  }
  for (const BinId each : used) {
    Magazine* const magazine = cpu_cache_get(caches, each, kWhole, nullptr);
    ASSERT_NE(magazine, nullptr) << "bin " << index(each);
    magazine->set_next(nullptr);
    drain_list(each, magazine);
    EXPECT_LE(mine().bytes, 512 * kKiB + kMagazineBytesMost) << "a magazine more at most";
  }
  expect_exact();
}

TEST_F(CpuCacheTest, OneByOne) {
  Magazine* emptied = nullptr;
  EXPECT_EQ(cpu_cache_pop_one(caches, bin, &emptied), nullptr);
  EXPECT_EQ(emptied, nullptr);
  void* object = nullptr;
  ASSERT_EQ(take_objects(process_store, bin, &object, 1), 1u);
  EXPECT_EQ(cpu_cache_push_one(caches, bin, object), Pushed::kNo) << "no magazine waits that has room";
  Magazine* const waiting = magazine_of(bin, 2);
  const std::vector<void*> objects = objects_of(waiting);
  cpu_cache_put(caches, bin, waiting, "test");
  EXPECT_EQ(cpu_cache_push_one(caches, bin, object), Pushed::kYes);
  EXPECT_EQ(cpu_cache_push_one(caches, bin, object), Pushed::kTwice);
  EXPECT_EQ(cpu_cache_push_one(caches, bin, objects[1]), Pushed::kTwice) << "below others";
  EXPECT_TRUE(cpu_caches_hold(caches, bin, objects[1]));
  EXPECT_FALSE(cpu_caches_hold(caches, bin, static_cast<char*>(objects[1]) + 1));
  EXPECT_EQ(cpu_caches_objects(caches, bin), 3u);
  expect_exact();
  EXPECT_EQ(cpu_cache_pop_one(caches, bin, &emptied), object) << "last in, first out";
  EXPECT_EQ(emptied, nullptr);
  EXPECT_EQ(cpu_cache_pop_one(caches, bin, &emptied), objects[0]);
  EXPECT_EQ(emptied, nullptr);
  EXPECT_EQ(cpu_cache_pop_one(caches, bin, &emptied), objects[1]);
  EXPECT_EQ(emptied, waiting) << "used up";
  magazines_put(emptied);
  expect_exact();
  for (void* each : {object, objects[0], objects[1]}) give_objects(bin, &each, 1, "test");
}

TEST_F(CpuCacheTest, OneByOneFillsAMagazineToItsMost) {
  for (const BinId each : {bin_of(64), bin_of(3000), bin_of(16 * kKiB)}) {
    cpu_cache_put(caches, each, magazine_of(each, 1), "test");
    unsigned pushed = 0;
    for (;; ++pushed) {
      void* object = nullptr;
      ASSERT_EQ(take_objects(process_store, each, &object, 1), 1u);
      if (cpu_cache_push_one(caches, each, object) == Pushed::kYes) continue;
      give_objects(each, &object, 1, "test");
      break;
    }
    EXPECT_EQ(pushed + 1, info_of(each).magazine_most);
  }
  expect_exact();
}

TEST_F(CpuCacheTest, BusyMeansTheDepot) {
  const uint64_t busy = cpu_caches_busy(caches);
  EXPECT_TRUE(mine().section.run(false, [&] {
    EXPECT_EQ(cpu_cache_put(caches, bin, magazine_of(bin, kWhole), "test"), nullptr);
    EXPECT_EQ(cpu_caches_objects(caches, bin), 0u) << "nobody else is let in";
    EXPECT_EQ(depot_objects(caches.depot, bin), kWhole);
    Magazine* const into = empty_magazine();
    ASSERT_EQ(cpu_cache_get(caches, bin, 10, into), into);
    EXPECT_EQ(into->count(), 10u);
    EXPECT_EQ(depot_objects(caches.depot, bin), kWhole - 10) << "the rest went back";
    drain_list(bin, into);
    Magazine* const rest = cpu_cache_get(caches, bin, kWhole, nullptr);
    ASSERT_NE(rest, nullptr);
    EXPECT_EQ(rest->count(), kWhole - 10);
    EXPECT_EQ(depot_objects(caches.depot, bin), 0u);
    void* object = *rest->top();
    Magazine* emptied = rest;
    EXPECT_EQ(cpu_cache_push_one(caches, bin, object), Pushed::kNo);
    EXPECT_EQ(cpu_cache_pop_one(caches, bin, &emptied), nullptr);
    EXPECT_EQ(emptied, nullptr);
    drain_list(bin, rest);
    EXPECT_EQ(cpu_caches_trim(caches, true), 0u) << "trimming does not wait either";
  }));
  EXPECT_GE(cpu_caches_busy(caches), busy + 5) << "and it is counted";
}

TEST_F(CpuCacheTest, WithoutCpuCachesTheDepotServes) {
  options.cpu_cache = 0;
  cpu_cache_put(caches, bin, magazine_of(bin, kWhole), "test");
  EXPECT_EQ(cpu_caches_objects(caches, bin), 0u);
  EXPECT_EQ(depot_objects(caches.depot, bin), kWhole);
  Magazine* const magazine = cpu_cache_get(caches, bin, kWhole, nullptr);
  ASSERT_NE(magazine, nullptr);
  EXPECT_EQ(magazine->count(), kWhole);
  drain_list(bin, magazine);
}

// A KiB of metadata for one object of 8, never given back: 1 M of objects that were freed one by one left 525 MiB.
TEST_F(CpuCacheTest, AMagazineOfFewObjectsDoesNotWaitInTheDepot) {
  const auto put = [](BinId each, unsigned count) {
    Magazine* const magazine = magazine_of(each, count);
    Magazine* const emptied = cpu_cache_put(caches, each, magazine, "test");
    if (emptied != nullptr) {
      EXPECT_EQ(emptied, magazine);
      emptied->set_next(nullptr);
      magazines_put(emptied);
    }
    return emptied != nullptr;
  };
  const auto try_all = [&] {
    for (const BinId each : {bin, bin_of(8), bin_of(8000), bin_of(32000)}) {
      const unsigned most = info_of(each).magazine_most, half = std::min((most + 1) / 2, kWholeLeast);
      if (half > 1) EXPECT_TRUE(put(each, half - 1)) << index(each);
      EXPECT_EQ(depot_objects(caches.depot, each), 0u) << index(each);
      EXPECT_EQ(taken_objects(each), 0u) << "they are in their folios again";
      EXPECT_FALSE(put(each, half)) << index(each);
      EXPECT_EQ(depot_objects(caches.depot, each), half) << index(each);
      depot_trim(caches.depot, true);
    }
  };
  EXPECT_TRUE(mine().section.run(false, try_all));
  options.cpu_cache = 0;
  try_all();
}

TEST_F(CpuCacheTest, TheSecondTrimDrainsAListThatNobodyUsed) {
  const BinId other = bin_of(1000);
  cpu_cache_put(caches, bin, magazine_of(bin, kWhole), "test");
  cpu_cache_put(caches, other, magazine_of(other, 40), "test");
  EXPECT_EQ(cpu_caches_trim(caches, false), 0u);
  Magazine* const used = cpu_cache_get(caches, other, kWhole, nullptr);
  cpu_cache_put(caches, other, used, "test");
  EXPECT_EQ(cpu_caches_trim(caches, false), 1u);
  EXPECT_EQ(cpu_caches_objects(caches, bin), 0u);
  EXPECT_EQ(taken_objects(bin), 0u);
  EXPECT_EQ(cpu_caches_objects(caches, other), 40u);
  expect_exact();
}

TEST_F(CpuCacheTest, StepsDrainEveryList) {
  const BinId bins[] = {bin, bin_of(300), bin_of(1000)};
  for (const BinId one : bins) cpu_cache_put(caches, one, magazine_of(one, 40), "test");
  unsigned steps = 0, sum = 0;
  for (unsigned next = 0; next != kCpuListsEnd; ++steps) {
    unsigned drained = 0;
    const unsigned from = next;
    next = cpu_caches_drain_step(caches, from, 2, &drained);
    ASSERT_GT(next, from);
    EXPECT_LE(drained, 2u) << "up to the end of one list";
    sum += drained;
  }
  EXPECT_EQ(steps, 2u) << "of two lists and one";
  EXPECT_EQ(sum, 3u);
  for (const BinId one : bins) EXPECT_EQ(cpu_caches_objects(caches, one), 0u);
  expect_exact();
  unsigned drained = 0;
  EXPECT_EQ(cpu_caches_drain_step(caches, 0, 2, &drained), kCpuListsEnd) << "nothing is there";
  EXPECT_EQ(drained, 0u);
}

TEST_F(CpuCacheTest, AChildForgetsWhoWasInside) {
  cpu_cache_put(caches, bin, magazine_of(bin, kWhole), "test");
  int result = -1;
  mine().section.run(false, [&] {
    result = in_child([] {
      if (!mine().section.held()) return kFailed;
      cpu_caches_after_fork(caches, process_fields, true);
      if (mine().section.held() || mine().bytes != 0 || cpu_caches_objects(caches, bin) != 0) return kFailed;
      cpu_cache_put(caches, bin, magazine_of(bin, 40), "test");
      return cpu_caches_objects(caches, bin) == 40 ? kPassed : kFailed;
    });
  });
  EXPECT_EQ(result, kPassed);
  // One where nobody was inside keeps what it has.
  EXPECT_EQ(in_child([] {
              cpu_caches_after_fork(caches, process_fields, true);
              return cpu_caches_objects(caches, bin) == kWhole ? kPassed : kFailed;
            }),
            kPassed);
}

// Counts are made apart from pushes and pops. (A chain of 25 forks beside 64 threads had a depot of 11 MiB where 3 were
// allowed.)
TEST_F(CpuCacheTest, AChildCountsTheDepotAnew) {
  const BinId larger = bin_of(3000);
  while (depot_objects(caches.depot, bin) == 0) cpu_cache_put(caches, bin, magazine_of(bin, kWhole), "test");
  while (depot_objects(caches.depot, larger) == 0) {
    cpu_cache_put(caches, larger, magazine_of(larger, info_of(larger).magazine_most), "test");
  }
  EXPECT_EQ(in_child([] {
              depot_count(caches.depot, true, -12345);
              depot_count(caches.depot, false, 6789);
              mine().to_depot[1] = 99;
              cpu_caches_after_fork(caches, process_fields, true);
              const Depot& depot = caches.depot;
              int64_t right[2] = {};
              for (const BinId each : all_bins()) {
                right[depot_small(each)] += static_cast<int64_t>(depot_objects(depot, each) * info_of(each).size);
              }
              for (unsigned i = 0; i < 2; ++i) {
                if (right[i] == 0 || depot.held.bytes[i].get() != right[i] || mine().to_depot[i] != 0) return kFailed;
              }
              return kPassed;
            }),
            kPassed);
}

TEST_F(CpuCacheTest, ThreadsNeverShareAnObject) {
  const BinId used[] = {bin_of(16), bin, bin_of(3000)};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      for (unsigned round = 0; round < rounds(5000); ++round) {
        const BinId each = used[random() % 3];
        const unsigned most = info_of(each).magazine_most;
        Magazine* const into = empty_magazine();
        Magazine* magazine = cpu_cache_get(caches, each, 1 + random() % most, into);
        if (magazine != into) magazines_put(into);
        if (magazine == nullptr) magazine = magazine_of(each, 1 + random() % most);
        magazine->set_next(nullptr);
        for (void* object : objects_of(magazine)) {
          *static_cast<uint64_t*>(object) = t;
          ASSERT_EQ(*static_cast<uint64_t*>(object), t);
        }
        if (random() % 8 == 0) {
          drain_list(each, magazine);
        } else if (Magazine* empty = cpu_cache_put(caches, each, magazine, "test")) {
          empty->set_next(nullptr);
          magazines_put(empty);
        }
        if (round % 1000 == 0) cpu_caches_trim(caches, t == 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const BinId each : used) {
    EXPECT_EQ(taken_objects(each), cpu_caches_objects(caches, each) + depot_objects(caches.depot, each));
    EXPECT_TRUE(check_bin(process_store, each));
  }
}

// Two in one process: neither sees the other's objects, small or large, in the caches or in the depot behind them.
TEST_F(CpuCacheTest, AnotherInstanceKnowsNothingOfThisOne) {
  static constinit CpuCaches second{};
  depot_set_shared(second.depot);
  EXPECT_EQ(cpu_cache_get(second, bin, kWhole, nullptr), nullptr) << "which makes its cache";
  EXPECT_EQ(second.depot.cpus.get(), 1u);
  Magazine* const here = magazine_of(bin, kWhole);
  Magazine* const there = magazine_of(bin, 40);
  cpu_cache_put(caches, bin, here, "test");
  EXPECT_EQ(cpu_caches_objects(second, bin), 0u);
  void* const object = *here->top();
  EXPECT_TRUE(cpu_caches_hold(caches, bin, object));
  EXPECT_FALSE(cpu_caches_hold(second, bin, object));
  EXPECT_EQ(cpu_cache_push_one(second, bin, object), Pushed::kNo) << "no magazine waits there";
  cpu_cache_put(second, bin, there, "test");
  EXPECT_EQ(cpu_caches_objects(caches, bin), kWhole);
  EXPECT_EQ(cpu_caches_objects(second, bin), 40u);
  EXPECT_EQ(cpu_caches_trim(caches, true), 1u) << "only its own";
  EXPECT_EQ(cpu_cache_get(caches, bin, kWhole, nullptr), nullptr);
  EXPECT_EQ(cpu_cache_get(second, bin, kWhole, nullptr), there);
  there->set_next(nullptr);
  drain_list(bin, there);
  // The depots.
  const unsigned most = bundle_objects(bin) / kWhole;
  for (unsigned i = 0; i <= most; ++i) cpu_cache_put(second, bin, magazine_of(bin, kWhole), "test");
  EXPECT_EQ(depot_objects(second.depot, bin), (most + 1) * kWhole);
  EXPECT_EQ(depot_objects(caches.depot, bin), 0u);
  EXPECT_EQ(cpu_cache_get(caches, bin, kWhole, nullptr), nullptr);
  EXPECT_EQ(depot_trim(second.depot, true), most + 1);
  // Budgets, the process's own ones, and large objects.
  cpu_caches_spare(second, true);
  EXPECT_FALSE(caches.sparing.get());
  cpu_caches_spare(second, false);
  void* const large = large_alloc(process_fields, kGranuleBytes, 1, false);
  const unsigned granules = large_park(large);
  EXPECT_TRUE(cpu_cache_put_large(second, large, granules));
  EXPECT_EQ(cpu_cache_get_large(caches, granules), nullptr);
  EXPECT_EQ(cpu_caches_trim(caches, true), 0u);
  EXPECT_EQ(cpu_cache_get_large(second, granules), large);
  large_give(large);
  EXPECT_EQ(process_caches.depot.cpus.get(), 0u);
}

}  // namespace
