// The random driver from fixed seeds: alone, with every structure's check() at intervals; and in several threads that
// pass objects on to each other.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "cache/depot.h"
#include "diag/stats.h"
#include "model/driver.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/pages.h"
#include "store/bin.h"
#include "store/check.h"
#include "unit/child.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// What may be set: the defaults, nothing cached anywhere and nothing kept, and caches that are always too small.
enum Setting : int { kDefaults, kNothingKept, kTight, kNoCpuCache };

void apply(int setting) {
  options.housekeeper = kHousekeeperOff;
  if (setting == kNothingKept) {
    options.thread_cache = options.thread_cache_pool = options.cpu_cache = options.depot = 0;
    options.decay = options.dirty_floor = 0;
  } else if (setting == kTight) {
    options.thread_cache = 4;
    options.thread_cache_pool = 0;
    options.cpu_cache = 64;
    options.depot = 64;
    options.decay = 1;
    options.dirty_floor = 1;
  } else if (setting == kNoCpuCache) {
    options.cpu_cache = 0;
  }
}

void expect_all_bins_good() {
  for (const BinId bin : all_bins()) ASSERT_TRUE(check_bin(process_store, bin)) << "bin " << index(bin);
  ASSERT_TRUE(large_check(process_fields));
}

void expect_nothing_left() {
  folio_collect();
  expect_all_bins_good();
  const Totals t = totals();
  EXPECT_EQ(t.live, 0u);
  EXPECT_EQ(t.cached, 0u);
  EXPECT_EQ(t.dirty, 0u);
  EXPECT_EQ(t.resident, 0u);
  EXPECT_EQ(huge_live_count(), 0u);
  EXPECT_EQ(large_stats(process_fields).taken, 0u);
}

// With no thread at work: the heap's own count of live objects against the model's.
void expect_same_count(size_t count) {
  uint64_t live = huge_live_count() + large_stats(process_fields).objects;
  for (const BinId bin : all_bins()) {
    const BinStats s = bin_stats(bin);
    ASSERT_LE(s.cached, s.taken) << "bin " << index(bin);
    live += s.taken - s.cached;
  }
  ASSERT_EQ(live, count);
}

class Model : public ::testing::TestWithParam<std::tuple<int, unsigned>> {
 protected:
  Model() { apply(std::get<0>(GetParam())); }
  unsigned seed() const { return std::get<1>(GetParam()); }

 private:
  SavedOptions saved_;
};
INSTANTIATE_TEST_SUITE_P(Seeds, Model,
                         ::testing::Combine(::testing::Values(kDefaults, kNothingKept, kTight, kNoCpuCache),
                                            ::testing::Values(1u, 2u)));

TEST_P(Model, OneThread) {
  RandomSource source(seed());
  Driver driver(source, seed(), {});
  const unsigned steps = rounds(40000);
  for (unsigned i = 0; i < steps; ++i) {
    driver.step();
    ASSERT_TRUE(driver.ok()) << driver.failure();
    if (i % 4000 != 0) continue;
    expect_all_bins_good();
    expect_same_count(driver.count());
    if (HasFatalFailure()) FAIL() << "step " << i;
  }
  driver.free_all();
  ASSERT_TRUE(driver.ok()) << driver.failure();
  expect_nothing_left();
}

// Where objects wait for another thread.
class Mailbox {
 public:
  // Leaves one, takes another that was left before.
  Object exchange(const Object& object, uint32_t at) {
    Slot& slot = slots_[at % std::size(slots_)];
    const std::lock_guard lock(slot.mutex);
    return std::exchange(slot.object, object);
  }
  void empty(Driver& into) {
    for (Slot& slot : slots_) into.adopt(std::exchange(slot.object, {}));
  }

 private:
  struct Slot {
    std::mutex mutex;
    Object object;
  };
  Slot slots_[64];
};

TEST_P(Model, ThreadsThatPassObjectsOn) {
  constexpr unsigned kThreads = 4;
  Mailbox mailbox;
  std::atomic<size_t> left{0};
  std::mutex mutex;
  std::vector<std::string> failures;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      RandomSource source(seed() * 100 + t);
      Driver driver(source, uint64_t{seed()} << 56 | uint64_t{t} << 48,
                    {.live_most = size_t{32} << 20, .huge_most = size_t{8} << 20, .whole_process = false});
      for (unsigned i = 0; driver.ok() && i < rounds(20000); ++i) {
        driver.step();
        if (i % 3 == 0) driver.adopt(mailbox.exchange(driver.give_away(), source.word()));
      }
      left += driver.count();
      // Half of them end with objects of theirs in other threads, half with all of theirs freed.
      for (unsigned i = 0; t % 2 == 0 && driver.ok() && i < 64; ++i) {
        driver.adopt(mailbox.exchange(driver.give_away(), i));
      }
      driver.free_all();
      const std::lock_guard lock(mutex);
      if (!driver.ok()) failures.push_back(driver.failure());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
  ASSERT_TRUE(failures.empty());
  EXPECT_GT(left, 0u);
  RandomSource source(seed());
  Driver rest(source, 0, {});
  mailbox.empty(rest);
  ASSERT_TRUE(rest.ok()) << rest.failure();
  expect_same_count(rest.count());
  expect_all_bins_good();
  rest.free_all();
  ASSERT_TRUE(rest.ok()) << rest.failure();
  expect_nothing_left();
}

// The driver must see what is wrong, or its runs prove nothing. In a child, since a driver that has failed leaves its
// objects.

// What the driver says after `harm` has been done with one of its objects.
template <class Harm>
bool driver_says(const char* expected, Harm&& harm) {
  return in_child([&] {
           RandomSource source(1);
           Driver driver(source, 1, {});
           for (unsigned i = 0; i < 200; ++i) driver.step();
           Object object;
           do object = driver.give_away();
           while (object.base != nullptr && (object.written < 16 || object.size < object.written));
           if (object.base == nullptr || !driver.ok()) return kFailed;
           harm(driver, object);
           return driver.failure().find(expected) != std::string::npos ? kPassed : kFailed;
         }) == kPassed;
}

TEST(Driver, SeesAChangedByte) {
  for (const bool last : {false, true}) {
    EXPECT_TRUE(driver_says("its contents have changed", [last](Driver& driver, const Object& object) {
      ++object.base[last ? object.written - 1 : 8];
      driver.adopt(object);
    }));
  }
}

TEST(Driver, SeesAnOverlap) {
  EXPECT_TRUE(driver_says("overlaps", [](Driver& driver, const Object& object) {
    driver.adopt(object);
    if (driver.ok()) driver.adopt(object);
  }));
}

TEST(Driver, SeesAnObjectThatWasFreed) {
  EXPECT_TRUE(driver_says("is said to be free", [](Driver& driver, const Object& object) {
    driver.adopt(object);
    folio_free(object.base);
    folio_collect();
    for (unsigned i = 0; driver.ok() && i < 10000; ++i) driver.ask();
  }));
}

}  // namespace
