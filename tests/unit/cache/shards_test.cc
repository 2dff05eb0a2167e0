#include "cache/shards.h"

#include <set>
#include <thread>

#include "cache/depot.h"
#include "unit/cache/magazines.h"
#include "unit/scripted_cpu.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

const BinId bin = bin_of(64);
thread_local unsigned cpu = 0;
constinit Depot depot{};

void give(Magazine* bundle) {
  const int64_t bytes = bundle_bytes(bin, bundle);
  depot_push(depot, bin, bundle, bytes, "test");
  depot_count(depot, depot_small(bin), bytes);
}

Magazine* take() {
  Magazine* const bundle = depot_pop(depot, bin);
  if (bundle != nullptr) depot_count(depot, depot_small(bin), -bundle_bytes(bin, bundle));
  return bundle;
}

unsigned in_use() { return shards.load(order::relaxed); }

// Each test starts as a process that has run on one CPU.
class ShardsTest : public ::testing::Test {
 protected:
  ShardsTest() {
    cpu = 0;
    cpu_of_thread = [] { return cpu; };
    shards.store(1, order::relaxed);
    depot_set_shared(depot);
  }
  ~ShardsTest() override {
    depot_trim(depot, true);
    EXPECT_EQ(depot_objects(depot, bin), 0u);
    EXPECT_EQ(taken_objects(bin), 0u);
    cpu_of_thread = nullptr;
  }
};

TEST_F(ShardsTest, OneUpToEightCpus) {
  for (cpu = 0; cpu < kShardCpus; ++cpu) {
    EXPECT_EQ(own_shard(), 0u) << cpu;
    give(bundle_of(bin, 1, 10));
  }
  EXPECT_EQ(in_use(), 1u);
  EXPECT_EQ(account_step(), kAccountStep);
}

TEST_F(ShardsTest, AsManyAsCpusGiveFrom) {
  cpu = kShardCpus;
  EXPECT_EQ(own_shard(), 1u);
  EXPECT_EQ(in_use(), 2u);
  EXPECT_GT(account_step(), kAccountStep);
  cpu = 5 * kShardCpus;
  EXPECT_EQ(own_shard(), 5u);
  EXPECT_EQ(in_use(), 8u);
  cpu = 0;
  EXPECT_EQ(own_shard(), 0u);
  EXPECT_EQ(in_use(), 8u) << "it only grows";
  cpu = 256 * kShardCpus + 3;
  EXPECT_EQ(own_shard(), 0u) << "further CPUs share";
  cpu = kShardsMost * kShardCpus - 1;
  EXPECT_EQ(own_shard(), kShardsMost - 1);
  EXPECT_EQ(in_use(), kShardsMost);
}

TEST_F(ShardsTest, ATakeChecksItsOwnFirstAndAtEachOnce) {
  shards.store(kShardsMost, order::relaxed);
  std::set<unsigned> second;
  for (cpu = 0; cpu < kShardsMost * kShardCpus; cpu += kShardCpus) {
    std::vector<unsigned> seen;
    const void* const found = find_in_shards([&](unsigned shard) -> const void* {
      seen.push_back(shard);
      return nullptr;
    });
    EXPECT_EQ(found, nullptr);
    ASSERT_EQ(seen.size(), kShardsMost);
    EXPECT_EQ(seen[0], cpu / kShardCpus);
    second.insert(seen[kShardsMost / 2]);
    EXPECT_EQ(std::set<unsigned>(seen.begin(), seen.end()).size(), kShardsMost);
  }
  EXPECT_EQ(second.size(), kShardsMost) << "not all go on to the same one";
}

TEST_F(ShardsTest, ABundleIsFoundFromEveryCpu) {
  for (const unsigned giver : {0u, 9u, 100u, 255u}) {
    for (const unsigned taker : {0u, 8u, 77u, 255u, 1000u}) {
      cpu = giver;
      Magazine* const bundle = bundle_of(bin, 2, 30);
      give(bundle);
      EXPECT_EQ(depot_objects(depot, bin), 60u);
      cpu = taker;
      ASSERT_EQ(take(), bundle) << giver << " to " << taker;
      EXPECT_EQ(take(), nullptr);
      drain_list(bin, bundle);
    }
  }
}

TEST_F(ShardsTest, TheOwnShardComesFirst) {
  Magazine* bundles[3];
  for (unsigned i = 0; i < 3; ++i) {
    cpu = i * kShardCpus;
    give(bundles[i] = bundle_of(bin, 1, 10 + i));
  }
  for (unsigned i = 0; i < 3; ++i) {
    cpu = i * kShardCpus;
    EXPECT_EQ(take(), bundles[i]);
    drain_list(bin, bundles[i]);
  }
}

TEST_F(ShardsTest, TheTickDrainsThemAll) {
  for (unsigned i = 0; i < 5; ++i) {
    cpu = i * kShardCpus;
    give(bundle_of(bin, 2, 10));
  }
  EXPECT_EQ(depot_objects(depot, bin), 100u);
  EXPECT_EQ(depot_trim(depot, false), 0u);
  EXPECT_EQ(depot_trim(depot, false), 10u) << "magazines";
  EXPECT_EQ(depot_objects(depot, bin), 0u);
}

TEST_F(ShardsTest, TheyHaveOneBoundTogether) {
  const SavedOptions saved;
  options.depot = 64;  // KiB
  for (unsigned i = 0; i < 100; ++i) {
    cpu = i % 4 * kShardCpus;
    give(bundle_of(bin, 1, 62));
  }
  ASSERT_EQ(shards.load(order::relaxed), 4u);
  EXPECT_LE(depot_objects(depot, bin), 64u * 1024 / 64);
  EXPECT_GT(depot_objects(depot, bin) + 62, 64u * 1024 / 64);
  EXPECT_EQ(taken_objects(bin), depot_objects(depot, bin));
}

TEST_F(ShardsTest, EmptyMagazinesAreFoundFromEveryCpu) {
  cpu = 3 * kShardCpus;
  Magazine* const list = magazines_get();
  magazines_put(list);
  cpu = 0;
  std::vector<Magazine*> others;
  Magazine* got = nullptr;
  while ((got = magazines_get()) != list && others.size() < 1000) others.push_back(got);
  EXPECT_EQ(got, list) << "before new ones are made";
  for (Magazine* other : others) magazines_put(other);
  magazines_put(list);
}

// Threads on CPUs of several shards pass bundles around: nothing is lost or doubled.
TEST_F(ShardsTest, ThreadsPassBundlesAround) {
  constexpr unsigned kThreads = 6, kBundles = 4;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([i] {
      cpu = i * kShardCpus;
      for (unsigned n = 0; n < kBundles; ++n) give(bundle_of(bin, 1 + n, 20));
      for (unsigned n = 0; n < rounds(20000); ++n) {
        cpu = (i + n / 100) % kThreads * kShardCpus;  // it moves
        if (Magazine* bundle = take()) give(bundle);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  constexpr uint64_t kAll = kThreads * 20 * (kBundles * (kBundles + 1) / 2);
  EXPECT_EQ(depot_objects(depot, bin), kAll);
  EXPECT_EQ(taken_objects(bin), kAll);
}

}  // namespace
