// What the tests of thread caches share: malloc and free by their slow halves, and a fixture that starts and ends with
// nothing cached.
#pragma once

#include "cache/thread_caches.h"

#include <algorithm>
#include <set>
#include <thread>

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "store/bin.h"
#include "store/check.h"
#include "unit/cache/magazines.h"
#include "unit/scripted_cpu.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

const BinId bin = bin_of(64);

// Malloc and free by their slow halves and the cursors, as core/ does it.
[[maybe_unused]] void* pop(BinId each) {
  Slot*& cursor = thread_cursors.cursor[index(each)];
  if (*cursor != nullptr) return *cursor++;
  return thread_cache_refill(thread_cache(), each);
}

[[maybe_unused]] void push(BinId each, void* object) {
  Slot*& cursor = thread_cursors.cursor[index(each)];
  if (reinterpret_cast<uintptr_t>(cursor) % kMagazineBytes == 0) {
    return thread_cache_overflow(thread_cache(), each, object, "test");
  }
  *--cursor = object;
}

[[maybe_unused]] std::vector<void*> pop_many(BinId each, unsigned n) {
  std::vector<void*> objects;
  for (unsigned i = 0; i < n; ++i) objects.push_back(pop(each));
  return objects;
}

[[maybe_unused]] void push_all(BinId each, std::vector<void*>& objects) {
  for (void* object : objects) push(each, object);
  objects.clear();
}

[[maybe_unused]] BinCache& cache_of(BinId each) { return thread_cache()->budget.bins[index(each)]; }

int64_t charge(BinId each, unsigned capacity) { return int64_t{info_of(each).size} * capacity; }

// What the thread may cache, told by its capacities and what is left, against what it was given and has claimed.
[[maybe_unused]] void expect_budget_adds_up() {
  const ThreadCache& c = *thread_cache();
  int64_t charged = 0;
  for (const BinId each : all_bins()) charged += charge(each, c.budget.bins[index(each)].capacity);
  EXPECT_EQ(c.budget.left + charged, (options.thread_cache << 10) + c.budget.claimed);
  EXPECT_GE(c.budget.left, 0);
  EXPECT_GE(c.budget.claimed, 0);
}

// As much as one thread can claim with few enough slow calls that no sweep takes it back: about 900 KiB.
[[maybe_unused]] void claim_much() {
  for (const size_t size : {800, 1000, 1200, 1400, 1700, 2000, 2500, 3000, 3500, 4000, 5000, 6000, 7000, 8000}) {
    const BinId each = bin_of(size);
    for (unsigned i = 0; i < 10; ++i) {
      std::vector<void*> objects = pop_many(each, 62);
      push_all(each, objects);
    }
  }
}

// Runs each test on a thread of its own, whose cache ends with it; then nothing may be left anywhere.
class ThreadCacheTest : public ::testing::Test {
 protected:
  ThreadCacheTest() {
    stay_on_this_cpu();
    cpu_of_thread = [] { return 0u; };
  }
  ~ThreadCacheTest() override {
    cpu_caches_trim(process_caches, true);
    depot_trim(process_caches.depot, true);
    for (const BinId each : all_bins()) {
      EXPECT_EQ(taken_objects(each), 0u) << "bin " << index(each);
      EXPECT_TRUE(check_bin(folio::process_store, each)) << "bin " << index(each);
    }
    for (const Slot& slot : closed_slots) EXPECT_EQ(slot, nullptr) << "the closed slots are never written";
    EXPECT_EQ(thread_count(), threads_);
  }
  template <class Body>
  static void on_thread(Body&& body) {
    std::thread(std::forward<Body>(body)).join();
  }

 private:
  SavedOptions saved_;
  unsigned threads_ = thread_count();
};

}  // namespace
