// Many threads, all sizes, frees by other threads than allocated; the decay clock runs all the time.
#include "core/clock.h"
#include "stress/support.h"

namespace stress {
namespace {

const bool configured = configure(1);

void run_threads(unsigned count, double seconds, size_t largest) {
  ASSERT_TRUE(configured);
  ASSERT_TRUE(folio::clock_start_housekeeper());
  Mailboxes mailboxes(256);
  const Deadline deadline(seconds);
  constexpr uint64_t kStepsLeast = 1000;
  std::atomic<uint64_t> steps{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      Worker worker(i + 1, mailboxes, largest);
      uint64_t n = 0;
      for (; !deadline.over(n * count > kStepsLeast && purges() != 0); ++n) worker.step();
      steps += n;
    });
  }
  // Meanwhile: everything is collected, and everything is counted, again and again.
  while (!deadline.over()) {
    folio_collect();
    folio_stats stats{};
    stats.struct_size = sizeof stats;
    folio_stats_get(&stats);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  for (std::thread& t : threads) t.join();
  empty(mailboxes);
  printf("%u threads: %lu steps, %lu KiB purged in %lu calls\n", count, steps.load(), folio::totals().purged >> 10,
         folio::totals().purge_calls);
  EXPECT_GT(steps.load(), kStepsLeast);
  EXPECT_GT(purges(), 0u);
  expect_quiet_and_sound();
}

TEST(Stress, FourThreads) { run_threads(4, 5, 300000); }
TEST(Stress, SixtyFourThreads) { run_threads(64, 5, 60000); }

// The same threads go on after each quiet moment, in which nothing is in flight and every invariant must hold.
TEST(Stress, QuietMoments) {
  constexpr unsigned kThreads = 6;
  Mailboxes mailboxes(64);
  const Deadline deadline(4);
  std::vector<std::unique_ptr<Worker>> workers;
  for (unsigned i = 0; i < kThreads; ++i) workers.push_back(std::make_unique<Worker>(i + 100, mailboxes));
  unsigned moments = 0;
  for (; !deadline.over() || moments == 0; ++moments) {
    std::vector<std::thread> threads;
    for (auto& worker : workers) {
      threads.emplace_back([&worker] {
        for (unsigned n = 0; n < (kSanitized ? 300 : 3000); ++n) worker->step();
      });
    }
    for (std::thread& t : threads) t.join();
    ASSERT_EQ(eventually(bins_are_sound), "");
  }
  printf("%u quiet moments\n", moments);
  workers.clear();
  empty(mailboxes);
  expect_quiet_and_sound();
}

}  // namespace
}  // namespace stress
