// Memory goes back to the kernel in the very call that frees it (decay 0): purges meet takes, gives and each other
// everywhere.
#include "stress/support.h"

namespace stress {
namespace {

const bool configured = [] {
  folio::options.decay = 0;
  folio::options.thread_cache = 0;
  folio::options.thread_cache_pool = 0;
  folio::options.cpu_cache = 64;
  folio::options.depot = 64;
  return true;
}();

constexpr uint64_t kPurgesLeast = 100;

void run(size_t least, size_t most, double seconds) {
  ASSERT_TRUE(configured);
  Mailboxes mailboxes(32);
  const Deadline deadline(seconds);
  std::atomic<uint64_t> steps{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      Worker worker(i + 1, mailboxes);
      uint64_t n = 0;
      for (; !deadline.over(purges() > kPurgesLeast); ++n) {
        const Object object = worker.allocate(least + worker.chance(static_cast<unsigned>(most - least)));
        Worker::release(mailboxes.swap(worker.chance(32), object));
        if (n % 64 == 0) folio_collect();
      }
      steps += n;
    });
  }
  for (std::thread& t : threads) t.join();
  empty(mailboxes);
  printf("%lu steps, %lu KiB purged in %lu calls\n", steps.load(), folio::totals().purged >> 10,
         folio::totals().purge_calls);
  EXPECT_GT(purges(), kPurgesLeast);
  expect_quiet_and_sound();
  EXPECT_EQ(eventually([] { return folio::totals().dirty == 0 ? "" : "something is dirty"; }), "");
}

TEST(Stress, PurgeSmallObjects) { run(1000, 3000, 2); }
TEST(Stress, PurgeLargeObjects) { run(4000, 100000, 2); }
TEST(Stress, PurgeHugeObjects) { run(size_t{1} << 20, size_t{9} << 20, 2); }

}  // namespace
}  // namespace stress
