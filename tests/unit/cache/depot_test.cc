#include "cache/depot.h"

#include <thread>

#include "policy/retain.h"
#include "unit/cache/magazines.h"
#include "unit/scripted_cpu.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

const BinId bin = bin_of(64);
constinit Depot depot{}, other_depot{};

// As the CPU caches do, but that these tell later.
void put(BinId each, Magazine* bundle) {
  const int64_t bytes = bundle_bytes(each, bundle);
  depot_push(depot, each, bundle, bytes, "test");
  depot_count(depot, depot_small(each), bytes);
}

Magazine* get(BinId each) {
  Magazine* const bundle = depot_pop(depot, each);
  if (bundle != nullptr) depot_count(depot, depot_small(each), -bundle_bytes(each, bundle));
  return bundle;
}

// First: a depot takes nothing until somebody says that there is a second thread, and then for good.
TEST(DepotAlone, KeepsNothing) {
  put(bin, bundle_of(bin, 3, 62));
  EXPECT_EQ(depot_objects(depot, bin), 0u);
  EXPECT_EQ(taken_objects(bin), 0u) << "it went to the folios";
  EXPECT_EQ(get(bin), nullptr);
}

// On one CPU, whatever the machine has: others may have shards of their own (shards_test.cc).
class DepotTest : public ::testing::Test {
 protected:
  DepotTest() {
    cpu_of_thread = [] { return 0u; };
    shards.store(1, order::relaxed);
    depot_set_shared(depot);
  }
  ~DepotTest() override {
    cpu_of_thread = nullptr;
    depot_trim(depot, true);
    for (const BinId each : all_bins()) {
      EXPECT_EQ(depot_objects(depot, each), 0u);
      EXPECT_EQ(taken_objects(each), 0u) << "bin " << index(each);
    }
  }
  SavedOptions saved_;
};

TEST_F(DepotTest, BundlesComeBackWholeTheLastOneFirst) {
  Magazine* const first = bundle_of(bin, 3, 62);
  Magazine* const second = bundle_of(bin, 2, 40);
  const std::vector<void*> objects = objects_of(first->next());
  put(bin, first);
  EXPECT_EQ(depot_objects(depot, bin), 3 * 62u);
  put(bin, second);
  EXPECT_EQ(depot_objects(depot, bin), 3 * 62u + 2 * 40u);
  ASSERT_EQ(get(bin), second);
  EXPECT_EQ(second->bundle_length(), 2u);
  ASSERT_EQ(get(bin), first);
  EXPECT_EQ(first->bundle_length(), 3u);
  EXPECT_EQ(*first->slot(kMagazineObjects), nullptr) << "the bottom's null is back";
  EXPECT_EQ(objects_of(first->next()), objects);
  EXPECT_EQ(first->next()->next()->next(), nullptr);
  EXPECT_EQ(get(bin), nullptr);
  EXPECT_EQ(depot_objects(depot, bin), 0u);
  drain_list(bin, first);
  drain_list(bin, second);
}

// A magazine of objects that lie far apart, in disorder.
Magazine* scattered_magazine(std::vector<void*>& heap) {
  Magazine* const magazine = empty_magazine();
  Slot* top = magazine->format(kMagazineObjects);
  for (unsigned i = 0; i < kMagazineObjects; ++i) {
    const size_t at = i * 37 % kMagazineObjects * (heap.size() / kMagazineObjects);
    *--top = heap[at];
    heap[at] = nullptr;
  }
  magazine->park(top);
  magazine->set_next(nullptr);
  magazine->set_bundle_length(1);
  return magazine;
}

// What passes through may lie as it likes; what would wait goes to the folios, if it is scattered.
TEST_F(DepotTest, WhatWaitsIsInOrder) {
  Magazine* const ordered = bundle_of(bin, 2, 62);
  std::vector<void*> heap(16384);
  for (size_t i = 0; i < heap.size();) {  // several chunks, at the end of which a call gets fewer
    const unsigned got =
        take_objects(process_store, bin, &heap[i], static_cast<unsigned>(std::min<size_t>(64, heap.size() - i)));
    ASSERT_NE(got, 0u);
    i += got;
  }
  std::sort(heap.begin(), heap.end());
  Magazine* const first = scattered_magazine(heap);
  std::erase(heap, nullptr);
  put(bin, first);
  EXPECT_EQ(depot_objects(depot, bin), kMagazineObjects) << "nothing waited";
  const unsigned taken = taken_objects(bin);
  Magazine* const second = scattered_magazine(heap);
  std::erase(heap, nullptr);
  put(bin, second);
  EXPECT_EQ(depot_objects(depot, bin), kMagazineObjects);
  EXPECT_EQ(taken_objects(bin), taken - kMagazineObjects);
  // Of a bundle only what is scattered.
  Magazine* const third = scattered_magazine(heap);
  std::erase(heap, nullptr);
  third->set_next(ordered);
  third->set_bundle_length(3);
  put(bin, third);
  EXPECT_EQ(depot_objects(depot, bin), kMagazineObjects + 2 * 62);
  ASSERT_EQ(get(bin), ordered);
  EXPECT_EQ(ordered->bundle_length(), 2u);
  drain_list(bin, ordered);
  ASSERT_EQ(get(bin), first);
  drain_list(bin, first);
  EXPECT_EQ(get(bin), nullptr);
  for (void* object : heap) give_objects(bin, &object, 1, "test");
}

TEST_F(DepotTest, BinsAreApart) {
  const BinId other = bin_of(1000);
  put(bin, bundle_of(bin, 1, 10));
  EXPECT_EQ(get(other), nullptr);
  EXPECT_EQ(depot_objects(depot, other), 0u);
}

TEST_F(DepotTest, WhatIsOverTheBoundGoesToTheFolios) {
  options.depot = 64;  // KiB
  const unsigned fit = 64 * 1024 / 64;
  unsigned pushed = 0;
  for (; pushed < 3 * fit; pushed += 62) put(bin, bundle_of(bin, 1, 62));
  EXPECT_LE(depot_objects(depot, bin), fit);
  EXPECT_GT(depot_objects(depot, bin) + 62, fit);
  EXPECT_EQ(taken_objects(bin), depot_objects(depot, bin)) << "the rest is free";
  // The bound is one for all bins of small objects, and one for all others.
  const BinId other = bin_of(400), larger = bin_of(2000);
  put(other, bundle_of(other, 1, 30));
  EXPECT_EQ(depot_objects(depot, other), 0u);
  put(larger, bundle_of(larger, 1, 30));
  EXPECT_EQ(depot_objects(depot, larger), 30u);
  put(larger, bundle_of(larger, 1, 30));
  EXPECT_EQ(depot_objects(depot, larger), 30u);
  // What goes out makes room again.
  for (unsigned i = 0; i < 20; ++i) drain_list(bin, get(bin));
  put(other, bundle_of(other, 1, 30));
  EXPECT_EQ(depot_objects(depot, other), 30u);
}

TEST_F(DepotTest, TheBoundGrowsWithTheCpusThatHaveACache) {
  options.depot = 64;  // KiB
  const unsigned fit = 64 * 1024 / 64;
  for (const unsigned cpus : {0u, 1u, 2u, 5u}) {
    depot.cpus.set(cpus);
    const unsigned most = (cpus == 0 ? 1 : cpus) * fit;
    for (unsigned pushed = 0; pushed < 2 * most; pushed += 62) put(bin, bundle_of(bin, 1, 62));
    EXPECT_EQ(depot_objects(depot, bin), most / 62 * 62) << cpus;
    depot_trim(depot, true);
  }
  depot.cpus.set(0);
}

TEST_F(DepotTest, WithoutRoomItKeepsNothing) {
  options.depot = 0;
  put(bin, bundle_of(bin, 2, 62));
  EXPECT_EQ(depot_objects(depot, bin), 0u);
  EXPECT_EQ(taken_objects(bin), 0u);
}

TEST_F(DepotTest, TheSecondTrimDrainsWhatWaitsAlsoUnderWhatIsUsed) {
  const BinId other = bin_of(1000);
  put(bin, bundle_of(bin, 2, 62));
  put(other, bundle_of(other, 1, 30));
  put(other, bundle_of(other, 1, 20));
  EXPECT_EQ(depot_trim(depot, false), 0u);
  Magazine* const used = get(other);
  EXPECT_EQ(used->count(), 20u);
  put(other, used);
  EXPECT_EQ(depot_trim(depot, false), 3u) << "magazines";
  EXPECT_EQ(depot_objects(depot, bin), 0u);
  EXPECT_EQ(taken_objects(bin), 0u);
  EXPECT_EQ(depot_objects(depot, other), 20u);
  EXPECT_EQ(depot_trim(depot, false), 1u);
}

TEST_F(DepotTest, WhatWaitsIsTakenWhenNothingNewerIsThere) {
  put(bin, bundle_of(bin, 1, 10));
  depot_trim(depot, false);
  put(bin, bundle_of(bin, 1, 20));
  Magazine* const newer = get(bin);
  Magazine* const older = get(bin);
  ASSERT_NE(newer, nullptr);
  ASSERT_NE(older, nullptr);
  EXPECT_EQ(newer->count(), 20u);
  EXPECT_EQ(older->count(), 10u);
  EXPECT_EQ(get(bin), nullptr);
  drain_list(bin, newer);
  drain_list(bin, older);
}

TEST_F(DepotTest, AStepGoesOnWhereTheOneBeforeEnded) {
  const BinId other = bin_of(1000);
  const auto fill = [&](unsigned bundles) {
    for (unsigned i = 0; i < bundles; ++i) {
      put(bin, bundle_of(bin, 1, 62));
      put(other, bundle_of(other, 2, 10));
    }
  };
  fill(5);
  EXPECT_EQ(depot_age(depot, 4), 0u) << "nothing has waited";
  fill(3);
  EXPECT_EQ(depot_age(depot, 4), 4u);
  EXPECT_EQ(depot_age(depot, 4), 5u) << "one more of a bin, and two bundles";
  EXPECT_EQ(depot_age(depot, 4), 4u);
  EXPECT_EQ(depot_objects(depot, bin) + depot_objects(depot, other), 3 * 62u + (3 + 1) * 20u);
  EXPECT_EQ(depot_age(depot, 4), 2u) << "the round ends";
  EXPECT_EQ(depot_objects(depot, bin) + depot_objects(depot, other), 3 * (62u + 20u))
      << "what came meanwhile has not waited";
  EXPECT_EQ(depot_age(depot, 100), 9u);
  EXPECT_EQ(depot_objects(depot, bin) + depot_objects(depot, other), 0u);
  EXPECT_EQ(taken_objects(bin) + taken_objects(other), 0u);
}

TEST_F(DepotTest, SmallAndLargerObjectsMayBeAsMuchAsTheOptionSaysEach) {
  options.depot = 64;  // KiB
  constexpr int64_t kOption = 64 << 10;
  const BinId larger = bin_of(8192);
  ASSERT_TRUE(depot_small(bin));
  ASSERT_FALSE(depot_small(larger));
  EXPECT_TRUE(depot_small(bin_of(448)));
  EXPECT_FALSE(depot_small(bin_of(512))) << "the option's text says so";
  const auto push = [&](BinId to, unsigned objects) {
    for (int64_t pushed = 0; pushed < 2 * kOption; pushed += int64_t{objects} * info_of(to).size) {
      put(to, bundle_of(to, 1, objects));
    }
  };
  const auto most = [&](BinId of, unsigned objects) {
    return static_cast<uint64_t>(kOption) / info_of(of).size / objects * objects;
  };
  for (const bool housekeeper : {false, true}) {
    set_timekeeper(housekeeper);
    push(bin, 62);
    push(larger, 2);
    EXPECT_EQ(depot_objects(depot, bin), most(bin, 62));
    EXPECT_EQ(depot_objects(depot, larger), most(larger, 2));
    depot_trim(depot, true);
  }
  options.depot = 0;
  depot_count(depot, false, -kOption);  // what CPU caches have not told yet
  push(larger, 2);
  EXPECT_EQ(depot_objects(depot, larger), 0u) << "0 means nothing";
  depot_count(depot, false, kOption);
  set_timekeeper(false);
}

TEST_F(DepotTest, TrimAllDrainsEverything) {
  options.depot = 32768;  // KiB: room for all of them
  unsigned magazines = 0;
  for (const BinId each : all_bins()) {
    if (info_of(each).magazine_most == 0) continue;
    put(each, bundle_of(each, 2, info_of(each).magazine_most));
    magazines += 2;
  }
  EXPECT_EQ(depot_trim(depot, true), magazines);
}

TEST_F(DepotTest, ABundleIsAboutAsManyBytesForEveryBin) {
  for (const BinId each : all_bins()) {
    const unsigned most = bundle_objects(each);
    const unsigned magazine = info_of(each).magazine_most;
    const uint64_t size = info_of(each).size;
    EXPECT_GE(most, magazine);
    EXPECT_LE(most, kBundleObjects);
    EXPECT_TRUE(most == magazine || most * size <= kBundleBytes) << "bin " << index(each);
    EXPECT_TRUE(most == kBundleObjects || (most + 1) * size > kBundleBytes) << "bin " << index(each);
  }
}

TEST_F(DepotTest, ThreadsPassBundlesOnWhole) {
  constexpr unsigned kThreads = 4;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      std::minstd_rand random(t + 1);
      for (unsigned round = 0; round < rounds(3000); ++round) {
        Magazine* bundle = random() % 2 == 0 ? get(bin) : nullptr;
        if (bundle == nullptr) bundle = bundle_of(bin, 1 + random() % 3, 1 + random() % 62);
        unsigned length = 0;
        for (Magazine* m = bundle; m != nullptr; m = m->next(), ++length) {
          for (void* object : objects_of(m)) {
            // One owner at a time: nobody else writes between these two.
            *static_cast<uint64_t*>(object) = t;
            ASSERT_EQ(*static_cast<uint64_t*>(object), t);
          }
        }
        ASSERT_EQ(length, bundle->bundle_length());
        if (random() % 8 == 0) {
          drain_list(bin, bundle);
        } else {
          put(bin, bundle);
        }
        if (round % 500 == 0) depot_trim(depot, t % 2 == 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken_objects(bin), depot_objects(depot, bin));
  EXPECT_TRUE(check_bin(process_store, bin));
}

// Two depots in one process: neither sees the other's bundles, nor do they share a bound.
TEST_F(DepotTest, AnotherDepotKnowsNothingOfThisOne) {
  Magazine* const here = bundle_of(bin, 3, 62);
  put(bin, here);
  EXPECT_FALSE(other_depot.shared.get()) << "who has several threads says so to each";
  depot_set_shared(other_depot);
  EXPECT_EQ(depot_objects(other_depot, bin), 0u);
  EXPECT_EQ(depot_pop(other_depot, bin), nullptr);
  Magazine* const there = bundle_of(bin, 2, 40);
  depot_push(other_depot, bin, there, bundle_bytes(bin, there), "test");
  EXPECT_EQ(depot_objects(other_depot, bin), 2 * 40u);
  EXPECT_EQ(depot_objects(depot, bin), 3 * 62u);
  EXPECT_EQ(depot_trim(depot, true), 3u) << "only its own";
  EXPECT_EQ(get(bin), nullptr);
  EXPECT_EQ(depot_age(depot, 100), 0u);
  EXPECT_EQ(depot_objects(other_depot, bin), 2 * 40u);
  // This one is full; the other one takes as much.
  options.depot = 16;
  while (depot_objects(depot, bin) < 128) put(bin, bundle_of(bin, 1, 32));
  const uint64_t full = depot_objects(depot, bin);
  for (unsigned i = 0; i < 3; ++i) put(bin, bundle_of(bin, 2, 62));
  EXPECT_LE(depot_objects(depot, bin), 256u);
  EXPECT_GE(depot_objects(depot, bin), full);
  Magazine* const more = bundle_of(bin, 2, 62);
  depot_push(other_depot, bin, more, bundle_bytes(bin, more), "test");
  EXPECT_EQ(depot_objects(other_depot, bin), 2 * 40u + 2 * 62u);
  ASSERT_EQ(depot_pop(other_depot, bin), more);
  ASSERT_EQ(depot_pop(other_depot, bin), there);
  EXPECT_EQ(depot_pop(other_depot, bin), nullptr);
  drain_list(bin, more);
  drain_list(bin, there);
}

}  // namespace
