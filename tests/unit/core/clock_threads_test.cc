// The bound and the time where each of many threads frees one large object, and then waits.
#include <atomic>
#include <thread>

#include "core/clock.h"
#include "policy/retain.h"
#include "space/housekeeper.h"
#include "unit/child.h"
#include "unit/core/heap.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr unsigned kThreads = 120;
constexpr size_t kSize = 1200 * kKiB;

int64_t dirty() { return page_counts.dirty.get(); }

// Threads that have an object each, wait until go(), free it one after the other and wait again. Calls check() then.
template <class Go, class Check>
bool frees_one_each(Go&& go, Check&& check) {
  std::atomic<unsigned> ready{0}, turn{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      void* const object = alloc(kSize);
      memset(object, 1, kSize);
      ++ready;
      while (turn != i + 1) sleep_ms(1);
      free_object(object);
      ++turn;
      while (!over) sleep_ms(5);
    });
  }
  while (ready != kThreads) sleep_ms(1);
  go();
  turn = 1;
  while (turn != kThreads + 1) sleep_ms(1);
  const bool good = check();
  over = true;
  for (std::thread& thread : threads) thread.join();
  return good;
}

class ClockThreads : public ::testing::Test {
  SavedOptions saved_;
};

TEST_F(ClockThreads, TheirCallsKeepTheBound) {
  options.housekeeper = kHousekeeperOff;
  options.dirty_floor = 8;
  options.decay = 3600000;
  const int result = in_child([] {
    const bool good = frees_one_each([] {},
                                     [] {
                                       // The floor, what is tolerated of large objects, and slack.
                                       if (dirty() > kTolerated + static_cast<int64_t>(20 * kMiB))
                                         fprintf(stderr, "%ld bytes\n", dirty());
                                       return dirty() <= kTolerated + static_cast<int64_t>(20 * kMiB);
                                     });
    return good ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST_F(ClockThreads, TheHousekeeperWakesForWhatTheyFree) {
  options.housekeeper = kHousekeeperOn;
  options.dirty_floor = 1024;
  options.decay = 50;
  const int result = in_child([] {
    clock_start_housekeeper_if_on();
    const auto comes_true = [](auto condition) {
      for (unsigned i = 0; i < 2000 && !condition(); ++i) sleep_ms(10);
      return condition();
    };
    bool slept = false;
    const bool good = frees_one_each([&] { slept = comes_true([] { return housekeeper_sleeps(); }); },
                                     [&] { return comes_true([] { return dirty() < static_cast<int64_t>(kMiB); }); });
    if (!slept) fprintf(stderr, "the housekeeper does not sleep\n");
    return good && slept ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

}  // namespace
