// Atomic read-modify-writes for each malloc/free pair between producers and consumers: how much the threads meet.
//
// The library is built with FOLIO_COUNT: every such operation of Atomic<T> is told here.
#include <folio/folio.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/atomic.h"

namespace {
thread_local uint64_t rmw_count = 0;
}  // namespace

void folio_count_rmw(const void*, bool, bool) { ++rmw_count; }

namespace stress {
namespace {

constexpr unsigned kBatch = 4096;  // as malloc-test hands over
constexpr unsigned kQueued = 4;    // batches that wait, at most, for each pair of threads

using Batch = std::vector<void*>;

class Queue {
 public:
  explicit Queue(size_t most) : most_(most) {}
  void put(Batch batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return batches_.size() < most_; });
    batches_.push_back(std::move(batch));
    changed_.notify_all();
  }
  Batch get() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !batches_.empty(); });
    Batch batch = std::move(batches_.front());
    batches_.pop_front();
    changed_.notify_all();
    return batch;
  }

 private:
  size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> batches_;
};

// A fixed size where both are equal, else sizes of chance between them.
struct Sizes {
  unsigned least, most;
};

double rmws_per_pair(unsigned threads, Sizes sizes, unsigned batches_each) {
  Queue queue(size_t{kQueued} * threads);
  std::atomic<uint64_t> rmws{0};
  std::vector<std::thread> all;
  for (unsigned i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      std::minstd_rand random(i + 1);
      // The first half warms up: thread caches grow as they run dry.
      for (unsigned n = 0; n < 2 * batches_each; ++n) {
        if (n == batches_each) rmw_count = 0;
        Batch batch(kBatch);
        for (void*& object : batch) object = folio_malloc(sizes.least + random() % (sizes.most - sizes.least + 1));
        queue.put(std::move(batch));
      }
      rmws += rmw_count;
    });
    all.emplace_back([&] {
      for (unsigned n = 0; n < 2 * batches_each; ++n) {
        const Batch batch = queue.get();
        if (n == batches_each) rmw_count = 0;
        for (void* object : batch) folio_free(object);
      }
      rmws += rmw_count;
    });
  }
  for (std::thread& t : all) t.join();
  return static_cast<double>(rmws.load()) / (static_cast<double>(batches_each) * threads * kBatch);
}

double report(unsigned threads, Sizes sizes, unsigned batches_each) {
  const double n = rmws_per_pair(threads, sizes, batches_each);
  printf("%2u + %2u threads, %4u to %4u bytes: %.4f read-modify-writes for each pair, one for every %.1f\n", threads,
         threads, sizes.least, sizes.most, n, 1 / n);
  return n;
}

TEST(CountPairs, OneSize) {
  // The best of some: while a thread is preempted within the CPU cache's section, all calls go to the depot.
  constexpr double kMost = 1.0 / 16;
  double least = report(1, {64, 64}, 100);
  for (unsigned i = 0; i < 4 && least > kMost; ++i) least = std::min(least, report(1, {64, 64}, 100));
  EXPECT_LE(least, kMost);
  report(4, {64, 64}, 30);
  report(32, {64, 64}, 6);
}

TEST(CountPairs, RandomSizes) {
  report(1, {8, 2048}, 100);
  report(4, {8, 2048}, 30);
  report(32, {8, 2048}, 6);
}

// Without this the test above could pass because nothing is counted.
TEST(CountPairs, Counts) {
  rmw_count = 0;
  void* objects[1000];
  for (void*& object : objects) object = folio_malloc(5000);
  for (void* object : objects) folio_free(object);
  folio_collect();
  EXPECT_GT(rmw_count, 10u);
}

}  // namespace
}  // namespace stress
