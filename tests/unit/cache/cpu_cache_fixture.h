// What the tests of CPU caches share: a fixture that stays on one CPU, starts and ends with nothing cached, and checks
// the books.
#pragma once

#include "cache/cpu_cache.h"

#include <set>
#include <thread>

#include "cache/depot.h"
#include "unit/cache/magazines.h"
#include "unit/child.h"
#include "unit/scripted_cpu.h"
#include "unit/store/take_give.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

const BinId bin = bin_of(64);
constexpr unsigned kWhole = kMagazineObjects;
constinit CpuCaches caches{};  // not the process's, which stay empty

class CpuCacheTest : public ::testing::Test {
 protected:
  explicit CpuCacheTest(bool shared = true) {
    stay_on_this_cpu();
    cpu_of_thread = [] { return 0u; };
    caches.depot.shared.set(shared);                               // each test begins with an empty depot
    drain_list(bin, cpu_cache_get(caches, bin, kWhole, nullptr));  // makes this CPU's cache
    cpu_cache_put(caches, bin, magazine_of(bin, 1), "test");
    cpu_caches_trim(caches, true);
  }
  ~CpuCacheTest() override {
    options.cpu_cache = 1024;
    cpu_caches_trim(caches, true);
    depot_trim(caches.depot, true);
    for (const BinId each : all_bins()) {
      EXPECT_EQ(cpu_caches_objects(caches, each), 0u) << "bin " << index(each);
      EXPECT_EQ(taken_objects(each), 0u) << "bin " << index(each);
    }
    for (Atomic<CpuCache*>& entry : caches.of_cpu) {
      if (const CpuCache* cache = entry.load(order::relaxed)) EXPECT_EQ(cache->bytes, 0u);
    }
  }
  static CpuCache& mine() { return *caches.of_cpu[os::cpu() % kCpusMost].load(order::acquire); }
  // The books of this CPU's cache against its magazines.
  static void expect_exact() {
    uint64_t bytes = 0;
    for (const BinId each : all_bins()) {
      const CpuList& list = mine().lists[index(each)];
      unsigned magazines = 0, objects = 0;
      for (Magazine* m = list.first.load(order::relaxed); m != nullptr; m = m->next(), ++magazines)
        objects += m->count();
      EXPECT_EQ(list.magazines, magazines) << "bin " << index(each);
      EXPECT_EQ(list.objects.load(order::relaxed), objects) << "bin " << index(each);
      EXPECT_EQ(cpu_caches_objects(caches, each), objects) << "bin " << index(each);
      bytes += uint64_t{objects} * info_of(each).size;
    }
    EXPECT_EQ(mine().bytes, bytes);
  }
  SavedOptions saved_;
};

}  // namespace
