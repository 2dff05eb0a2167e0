#include "cache/thread_budget.h"

#include <algorithm>
#include <atomic>
#include <random>

#include "space/pages.h"
#include "unit/cache/thread_cache_fixture.h"
#include "unit/scripted_cpu.h"

namespace {

int64_t cached_bytes() {
  int64_t bytes = 0;
  for (const BinId each : all_bins()) {
    bytes += static_cast<int64_t>(thread_cache_objects(thread_cache(), each) * info_of(each).size);
  }
  return bytes;
}

TEST_F(ThreadCacheTest, CapacitiesGrowWithUseUpToTheMost) {
  on_thread([] {
    int64_t claimed = 0;
    for (const BinId each : all_bins()) {
      BinCache& b = cache_of(each);
      unsigned before = 0;
      for (unsigned i = 0; i < 2000 && b.capacity < info_of(each).magazine_most; ++i) {
        std::vector<void*> objects = pop_many(each, std::min(2u * b.capacity + 2, 150u));
        push_all(each, objects);
        EXPECT_GE(b.capacity, before) << "never less while in use";
        before = b.capacity;
        claimed = std::max(claimed, thread_cache()->budget.claimed);
        expect_budget_adds_up();
      }
      EXPECT_LE(b.capacity, info_of(each).magazine_most) << "bin " << index(each);
      if (info_of(each).magazine_most >= 2) {
        EXPECT_EQ(b.capacity, info_of(each).magazine_most) << "the budget has room; bin " << index(each);
      } else {
        EXPECT_EQ(b.capacity, 0) << "not cached; bin " << index(each);
        EXPECT_TRUE(closed(thread_cursors.cursor[index(each)]));
      }
    }
    EXPECT_GT(claimed, 0);
  });
}

TEST_F(ThreadCacheTest, StartsWithFew) {
  on_thread([] {
    std::vector<void*> objects = {pop(bin)};
    EXPECT_LE(cache_of(bin).capacity, 16);
    push_all(bin, objects);
    EXPECT_LE(thread_cache_objects(thread_cache(), bin), 16u);
    // Large objects are not cached for a single use.
    for (const BinId each : {bin_of(5000), bin_of(20 * kKiB)}) {
      objects = {pop(each)};
      push_all(each, objects);
      EXPECT_EQ(thread_cache_objects(thread_cache(), each), 0u);
    }
  });
}

TEST_F(ThreadCacheTest, WithoutAPoolTheOwnBudgetIsTheBound) {
  options.thread_cache_pool = 0;
  options.thread_cache = 32;
  on_thread([] {
    std::mt19937 random(7);
    std::vector<std::vector<void*>> held(kBins);
    for (unsigned round = 0; round < rounds(20000); ++round) {
      const BinId each = bin_id(1 + random() % (kBins - 1));
      if (info_of(each).size > 20 * kKiB) continue;
      std::vector<void*> more = pop_many(each, 1 + random() % 20);
      held[index(each)].insert(held[index(each)].end(), more.begin(), more.end());
      if (random() % 3 != 0) push_all(each, held[index(each)]);
      // A whole magazine from the CPU cache may hold twice what was charged.
      ASSERT_LE(cached_bytes(), 2 * 32 * static_cast<int64_t>(kKiB)) << round;
      if (round % 100 == 0) expect_budget_adds_up();
    }
    EXPECT_EQ(thread_cache()->budget.claimed, 0);
    for (const BinId each : all_bins()) push_all(each, held[index(each)]);
    expect_budget_adds_up();
  });
}

TEST_F(ThreadCacheTest, ThePoolBoundsWhatAllClaim) {
  options.thread_cache_pool = 1;
  options.thread_cache = 0;
  constexpr unsigned kThreads = 4;
  // Side by side they may give some back, in sweeps after many calls with nothing left to claim; in turn the first one
  // does not.
  for (const bool in_turn : {false, true}) {
    std::atomic<int64_t> claimed{0};
    std::atomic<unsigned> done{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        while (in_turn && done != t) std::this_thread::yield();
        claim_much();
        claimed += thread_cache()->budget.claimed;
        ++done;
        while (done != kThreads) std::this_thread::yield();  // no claim is returned before all have told
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (in_turn) EXPECT_GT(claimed, static_cast<int64_t>(kMiB / 2));
    EXPECT_LE(claimed, static_cast<int64_t>(kMiB));
  }
  // All of it was returned: one thread can claim it again.
  on_thread([] {
    claim_much();
    EXPECT_GE(thread_cache()->budget.claimed, static_cast<int64_t>(kMiB / 2));
    expect_budget_adds_up();
  });
}

TEST_F(ThreadCacheTest, ThePoolGrowsWithTheProcess) {
  options.thread_cache_pool = 1;
  options.thread_cache = 0;
  const auto claimed = [](int64_t resident) {
    int64_t most = 0;
    count_resident(resident);
    on_thread([&] {
      claim_much();
      most = thread_cache()->budget.claimed;
    });
    count_resident(-resident);
    return most;
  };
  options.thread_cache_pool = 0;
  EXPECT_EQ(claimed(int64_t{1} << 30), 0) << "none stays none";
  options.thread_cache_pool = 1;
  const int64_t one = claimed(0);
  EXPECT_LE(one, static_cast<int64_t>(kMiB));
  {
    std::atomic<unsigned> done{0};
    std::atomic<int64_t> sum{0};
    std::vector<std::thread> threads;
    count_resident(int64_t{512} << 20);
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        claim_much();
        sum += thread_cache()->budget.claimed;
        ++done;
        while (done != 4) std::this_thread::yield();
      });
    }
    for (std::thread& thread : threads) thread.join();
    count_resident(-(int64_t{512} << 20));
    EXPECT_GT(sum, static_cast<int64_t>(kMiB)) << "four times as much is there";
    EXPECT_LE(sum, static_cast<int64_t>(5 * kMiB));
  }
}

// Slow calls of another bin than the ones that idle: of more objects than its magazine holds.
const BinId busy = bin_of(30 * kKiB);
void sweep() {
  const auto activity = [] { return thread_cache()->activity.get(); };
  const uint32_t before = activity();
  while (activity() - before < 2200) {
    std::vector<void*> objects = pop_many(busy, 8);
    push_all(busy, objects);
  }
}

TEST_F(ThreadCacheTest, IdleBinsShrinkAndGiveTheirClaimsBack) {
  on_thread([] {
    std::vector<void*> objects;
    for (unsigned i = 0; i < 20; ++i) {
      objects = pop_many(bin, 200);
      push_all(bin, objects);
      objects = pop_many(bin_of(1000), 200);
      push_all(bin_of(1000), objects);
    }
    EXPECT_EQ(cache_of(bin).capacity, kMagazineObjects);
    EXPECT_GT(thread_cache()->budget.claimed, 0);
    unsigned before = cache_of(bin).capacity;
    sweep();  // the first one finds it used
    for (unsigned i = 0; i < 8; ++i) {
      sweep();
      EXPECT_LE(cache_of(bin).capacity, before);
      before = cache_of(bin).capacity;
      expect_budget_adds_up();
    }
    EXPECT_EQ(cache_of(bin).capacity, 0);
    EXPECT_EQ(thread_cache_objects(thread_cache(), bin), 0u) << "and what it held was handed on";
    // All but what the busy one has.
    EXPECT_LE(thread_cache()->budget.claimed + (options.thread_cache << 10) - thread_cache()->budget.left,
              static_cast<int64_t>(kMagazineBytesMost + kMagazineBytes));
  });
}

// What a lost thread had claimed from the pool is the others' again, by a step a tick.
TEST_F(ThreadCacheTest, WhatLostThreadsClaimedReturnsToThePool) {
  options.thread_cache_pool = 1;
  options.thread_cache = 0;
  const auto claims = [] {
    int64_t claimed = 0;
    on_thread([&] {
      claim_much();
      claimed = thread_cache()->budget.claimed;
    });
    return claimed;
  };
  const int64_t before = claims();
  ASSERT_GT(before, int64_t{512} << 10);
  on_thread([&] {
    claim_much();
    thread_cache_drain(thread_cache(), "test");
    thread_cache_forget(*thread_cache(), true);
  });
  const int64_t without = claims();
  EXPECT_LE(without, before / 2);
  thread_budget_return_lost();
  EXPECT_LE(claims(), without + (int64_t{64} << 10)) << "a step only";
  for (unsigned tick = 0; tick < 64; ++tick) thread_budget_return_lost();
  EXPECT_EQ(claims(), before);
}

}  // namespace
