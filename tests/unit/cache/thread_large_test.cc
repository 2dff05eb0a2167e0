#include "cache/thread_large.h"

#include "cache/cpu_cache.h"
#include "policy/limit.h"
#include "space/large.h"
#include "unit/cache/thread_cache_fixture.h"
#include "unit/child.h"
#include "unit/scripted_cpu.h"
#include "unit/stderr_capture.h"

namespace {

constexpr size_t kGranule = kGranuleBytes;
constexpr unsigned kFits = kThreadLargeMost / (16 * kGranule);  // objects of 16 granules

void* parked(unsigned granules) {
  void* const object = large_alloc(process_fields, granules * kGranule - kLineOffsetMost, 1, false);
  EXPECT_EQ(large_park(object, nullptr, LargeList::kGranulesMost), granules);
  return object;
}
uint64_t parked_bytes() { return large_stats(process_fields).parked; }
LargeList& mine() { return thread_cache()->large; }

// As a free does it, after a malloc.
bool keep(void* object, unsigned granules, bool wanted = true) {
  const CpuCacheWork work;
  bool gone;
  mine().wanted = wanted;
  return thread_may_keep_large() && thread_keep_large(mine(), object, granules, &gone);
}
void* find(unsigned granules) {
  const CpuCacheWork work;
  return thread_may_keep_large() ? thread_find_large(mine(), granules) : nullptr;
}

class ThreadLargeTest : public ThreadCacheTest {
 protected:
  void SetUp() override {
    if (os::page_bytes() > kGranule) GTEST_SKIP() << "objects are whole pages";
  }
  ~ThreadLargeTest() override {
    cpu_caches_trim(process_caches, true);
    EXPECT_EQ(parked_bytes(), 0u);
    EXPECT_TRUE(large_check(process_fields));
  }
};

TEST_F(ThreadLargeTest, AnObjectComesBackToWhoWantsAboutAsMuch) {
  on_thread([] {
    void* const object = parked(15);
    EXPECT_TRUE(keep(object, 15));
    EXPECT_EQ(mine().bytes, 15 * kGranule);
    EXPECT_EQ(find(16), nullptr) << "too small";
    EXPECT_EQ(find(11), nullptr) << "too large";
    EXPECT_EQ(find(12), object);
    EXPECT_EQ(find(12), nullptr) << "it is gone";
    EXPECT_EQ(large_unpark(object, kGranule, 1, false), object);
    EXPECT_TRUE(large_place(object).starts(object)) << "live again";
    EXPECT_TRUE(large_free(object));
  });
}

TEST_F(ThreadLargeTest, WhatDoesNotFitGoesToTheCpuCacheTheOldestFirst) {
  on_thread([] {
    std::vector<void*> objects;
    for (unsigned i = 0; i < kFits + 2; ++i) {
      objects.push_back(parked(16));
      EXPECT_TRUE(keep(objects.back(), 16));
      EXPECT_LE(mine().bytes, kThreadLargeMost);
    }
    EXPECT_EQ(mine().bytes, kThreadLargeMost);
    for (unsigned i = 0; i < 2; ++i) {
      EXPECT_EQ(cpu_cache_get_large(process_caches, 16), objects[1 - i]) << "the newest that the CPU cache has";
      EXPECT_TRUE(large_give(objects[1 - i]));
    }
    for (unsigned i = kFits + 2; i-- != 2;) {
      EXPECT_EQ(find(16), objects[i]) << "the newest first";
      EXPECT_TRUE(large_give(objects[i]));
    }
    void* const large = parked(18);
    EXPECT_FALSE(keep(large, 18)) << "no cache has objects of that size";
    EXPECT_TRUE(large_give(large));
  });
}

// A thread that frees what others allocate hands it on, while it is in the processor's cache.
TEST_F(ThreadLargeTest, AThreadThatOnlyFreesKeepsNothing) {
  on_thread([] {
    void* const object = parked(16);
    EXPECT_FALSE(keep(object, 16, false));
    EXPECT_EQ(mine().budget, 0u);
    EXPECT_EQ(find(16), nullptr);
    EXPECT_TRUE(mine().wanted);
    EXPECT_TRUE(keep(object, 16));
    for (unsigned i = 1; i < kFits; ++i) EXPECT_TRUE(keep(parked(16), 16, mine().wanted));
    EXPECT_TRUE(keep(parked(16), 16, mine().wanted)) << "the oldest goes for it";
    void* const next = parked(16);
    EXPECT_FALSE(keep(next, 16, mine().wanted)) << "but no other one before the next malloc";
    EXPECT_TRUE(large_give(next));
  });
}

// With nothing to claim the CPU cache has them.
TEST_F(ThreadLargeTest, TheyShareHalfOfWhatThePoolHasAtFirstBesideIt) {
  options.thread_cache_pool = 1;
  on_thread([] {
    for (unsigned i = 0; i < 64; ++i) EXPECT_TRUE(keep(parked(3), 3));
    EXPECT_EQ(mine().budget, uint64_t{512} << 10);
    EXPECT_LE(mine().bytes, mine().budget);
    on_thread([] {
      void* const object = parked(3);
      EXPECT_FALSE(keep(object, 3)) << "another thread has all of it";
      EXPECT_TRUE(large_give(object));
      EXPECT_EQ(mine().budget, 0u);
      claim_much();
      EXPECT_GT(thread_cache()->budget.claimed, int64_t{512} << 10) << "bins have all of the pool";
    });
    EXPECT_NE(thread_release_large(mine(), LargeTo::kFields), 0u);
    EXPECT_EQ(mine().budget, 0u);
    on_thread([] { EXPECT_TRUE(keep(parked(3), 3)); });
  });
  options.thread_cache_pool = 0;
  on_thread([] {
    void* const object = parked(3);
    EXPECT_FALSE(keep(object, 3));
    EXPECT_TRUE(large_give(object));
  });
}

// A thread that sleeps gives nothing back, whatever the limit asks for.
TEST_F(ThreadLargeTest, OfALimitTheyKeepASmallPart) {
  limit_state.begins.set(int64_t{8} << 20);
  const uint64_t first = thread_budget_claim_large(), second = thread_budget_claim_large();
  EXPECT_NE(first, 0u);
  EXPECT_EQ(first + second, uint64_t{128} << 10);
  EXPECT_EQ(thread_budget_claim_large(), 0u);
  limit_state.begins.set(0);
  const uint64_t third = thread_budget_claim_large();
  EXPECT_NE(third, 0u);
  thread_budget_return_large(first + second + third);
}

TEST_F(ThreadLargeTest, AtTheThreadsEndTheCpuCacheHasThem) {
  void* object = nullptr;
  on_thread([&] {
    object = parked(5);
    EXPECT_TRUE(keep(object, 5));
  });
  EXPECT_EQ(cpu_cache_get_large(process_caches, 5), object);
  EXPECT_TRUE(large_give(object));
}

TEST_F(ThreadLargeTest, ADrainGivesThemBack) {
  on_thread([] {
    EXPECT_TRUE(keep(parked(5), 5));
    thread_cache_drain(thread_cache(), "test");
    EXPECT_EQ(parked_bytes(), 0u);
    EXPECT_EQ(mine().budget, 0u);
  });
}

TEST_F(ThreadLargeTest, SweepsFindThemIdle) {
  on_thread([] {
    EXPECT_TRUE(keep(parked(5), 5));
    thread_sweep_large(mine());
    EXPECT_EQ(mine().bytes, 5 * kGranule) << "one is not enough";
    void* const object = find(5);
    EXPECT_TRUE(keep(object, 5));
    thread_sweep_large(mine());
    EXPECT_EQ(mine().bytes, 5 * kGranule) << "it was used meanwhile";
    thread_sweep_large(mine());
    EXPECT_EQ(mine().bytes, 0u);
    EXPECT_EQ(mine().budget, 0u);
    EXPECT_EQ(cpu_cache_get_large(process_caches, 5), object);
    EXPECT_TRUE(large_give(object));
  });
}

TEST_F(ThreadLargeTest, NotWhileMemoryIsShortNorInACallThatInterruptsAnother) {
  on_thread([] {
    void* const object = parked(5);
    cpu_caches_spare(process_caches, true);
    EXPECT_FALSE(keep(object, 5));
    cpu_caches_spare(process_caches, false);
    {
      const CpuCacheWork interrupted;
      EXPECT_FALSE(keep(object, 5));
    }
    EXPECT_TRUE(keep(object, 5));
    {
      const CpuCacheWork interrupted;
      EXPECT_EQ(find(5), nullptr);
      thread_cache_drain(thread_cache(), "test");
      for (unsigned i = 0; i < 3; ++i) thread_sweep_large(mine());
      EXPECT_EQ(mine().bytes, 5 * kGranule) << "it is being changed";
    }
    EXPECT_EQ(find(5), object);
    EXPECT_TRUE(large_give(object));
  });
}

// Misuse: two frees of one object at the same moment, each by the plain store of its thread, so that two lists have it.
TEST_F(ThreadLargeTest, AnObjectInTwoListsIsHandedOutOnce) {
  options.errors = kErrorsWarn;
  on_thread([] {
    void* const object = parked(5);
    EXPECT_TRUE(keep(object, 5));
    EXPECT_TRUE(keep(object, 5));
    EXPECT_EQ(find(5), object);
    EXPECT_EQ(large_unpark(object, kGranule, 1, false), object);
    EXPECT_EQ(find(5), object);
    EXPECT_EQ(large_unpark(object, kGranule, 1, false), nullptr) << "it is live";
    EXPECT_EQ(large_park(object), 5u);
    EXPECT_EQ(large_unpark(object, 5 * kGranule + 1, 1, false), nullptr) << "too small";
    EXPECT_EQ(large_unpark(object, 4 * kGranule, 1, false), object);
    EXPECT_TRUE(keep(object, 5));
    StderrCapture captured;
    thread_cache_drain(thread_cache(), "test");
    EXPECT_NE(captured.stop().find("free(" + hex(object) + "): a large object was freed by two threads at once"),
              std::string::npos);
    EXPECT_TRUE(large_place(object).starts(object)) << "live still";
    EXPECT_TRUE(large_free(object));
    EXPECT_FALSE(large_give(object)) << "it is no cache's any more";
  });
}

// Wherever a thread vanished: a list is read by `used` alone.
TEST_F(ThreadLargeTest, AListThatIsHalfChangedGoesBack) {
  on_thread([] {
    EXPECT_TRUE(keep(parked(5), 5));
    EXPECT_TRUE(keep(parked(6), 6));
    mine().of[5] = mine().of[6] = 0;
    mine().bytes = 1;
    mine().hand = 63;
    EXPECT_EQ(thread_release_large(mine(), LargeTo::kFields), 2u);
    EXPECT_EQ(mine().bytes, 0u);
  });
}

TEST_F(ThreadLargeTest, AForksChildGivesThemBackWhoeverKeptThem) {
  on_thread([] {
    EXPECT_TRUE(keep(parked(5), 5));
    on_thread([] {
      EXPECT_TRUE(keep(parked(7), 7));
      EXPECT_EQ(in_child([] {
                  // As core/lifecycle.cc, which this program does not link, would have done.
                  thread_caches_drop_large();
                  cpu_caches_after_fork(process_caches, process_fields, true);
                  thread_caches_after_fork(true);
                  if (parked_bytes() != 0 || mine().used != 0 || !large_check(process_fields)) return kFailed;
                  for (ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) {
                    if (c != thread_cache() && c->large.budget != 0) return kFailed;
                  }
                  return keep(parked(4), 4) && find(4) != nullptr ? kPassed : kFailed;
                }),
                kPassed);
      // Where the child cannot give all back, as the fork came in the middle of a call, what others kept goes on.
      EXPECT_EQ(in_child([] {
                  cpu_caches_after_fork(process_caches, process_fields, false);
                  thread_caches_after_fork(true);
                  return parked_bytes() == 12 * kGranule && mine().bytes == 7 * kGranule &&
                                 cpu_cache_get_large(process_caches, 5) != nullptr
                             ? kPassed
                             : kFailed;
                }),
                kPassed);
    });
  });
}

}  // namespace
