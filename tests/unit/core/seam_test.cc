#include "core/seam.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "core/ladder.h"
#include "core/lifecycle.h"
#include "core/realloc.h"
#include "unit/child.h"
#include "unit/core/heap.h"

using namespace folio;
using namespace folio_test;

namespace {

struct Sums {
  uint64_t calls = 0, bytes = 0, chosen = 0, chosen_bytes = 0, freed = 0;
};
Sums sums() {
  Sums s;
  for (const SeamCounts& each : seam_counts) {
    for (const auto& calls : each.calls) s.calls += calls.get();
    s.bytes += each.bytes.get();
    s.chosen += each.chosen.get();
    s.chosen_bytes += each.chosen_bytes.get();
    s.freed += each.freed.get();
  }
  return s;
}
Sums operator-(const Sums& a, const Sums& b) {
  return {a.calls - b.calls, a.bytes - b.bytes, a.chosen - b.chosen, a.chosen_bytes - b.chosen_bytes,
          a.freed - b.freed};
}

// The front is what it is by itself, and so is the mode.
void expect_open() {
  EXPECT_EQ(seam_mode.load(order::relaxed), kOpen);
  for (size_t size = 0; size <= kSmallTableMost; ++size)
    ASSERT_EQ(front_small_cursor(size), kSizes.small_cursor[size]) << size;
  for (size_t size = 1; size <= kMediumMost; size += 61) {
    ASSERT_EQ(front_medium_bin(size), kSizes.medium_bin[(size + 63) / 64]) << size;
  }
}

class Seam : public ::testing::Test {
 protected:
  ~Seam() override {
    seam_open();
    expect_open();
    expect_everything_free();
  }
};

TEST_F(Seam, IsOpenAndSeesNothing) {
  expect_open();
  const Sums before = sums();
  for (const size_t size : edge_sizes()) free_object(alloc(size));
  EXPECT_EQ((sums() - before).calls, 0u);
}

// Its short path asks the front for two tables.
TEST_F(Seam, ReallocServesEverySizeWhileItIsClosed) {
  for (const uint64_t interval : {uint64_t{0}, uint64_t{1} << 40}) {
    ASSERT_TRUE(seam_close(interval));
    for (size_t from = 16; from < 40000; from += from / 3) {
      for (size_t to = 1; to < 40000; to += to / 7 + 1) {
        void* const object = alloc(from);
        fill(object, from, 1);
        void* const moved = reallocate_plain(object, to, "realloc");
        ASSERT_TRUE(filled(moved, from < to ? from : to, 1)) << from << ' ' << to;
        ASSERT_GE(usable(moved), to) << from << ' ' << to;
        free_object(moved);
      }
    }
    seam_open();
  }
}

TEST_F(Seam, EveryCallOfEachFunctionIsSeenOnce) {
  ASSERT_TRUE(seam_close(0));
  EXPECT_EQ(seam_mode.load(order::relaxed), kClosed);
  uint64_t calls = 0, bytes = 0;
  const Sums before = sums();
  for (const size_t size : edge_sizes()) {
    for (const unsigned round : {0, 1, 2}) {
      void* object = alloc(size);
      if (size <= kMediumMost) EXPECT_EQ(chunk_code(object), index(bin_of(size))) << size << ' ' << round;
      free_object(object);
      object = allocate_zeroed(size);
      EXPECT_TRUE(all_zero(object, size));
      release_sized(object, size, "test");
      object = allocate_aligned(256, size, true);
      EXPECT_TRUE(aligned_to(object, 256));
      release_aligned_sized(object, size, "test");
      object = reallocate(nullptr, 1, size, "test");
      free_object(object);
      calls += 4;
      bytes += 4 * size;
    }
  }
  const Sums seen = sums() - before;
  EXPECT_EQ(seen.calls, calls);
  EXPECT_EQ(seen.bytes, bytes);
  EXPECT_EQ(seen.chosen, 0u);
}

TEST_F(Seam, WhatIsChosenIsSeenWhenFreed) {
  ASSERT_TRUE(seam_close(1));  // all of them
  const Sums before = sums();
  uint64_t objects = 0, bytes = 0;
  for (const size_t size : edge_sizes()) {
    if (size < 100) continue;  // of these some are not chosen
    auto* object = static_cast<char*>(alloc(size));
    ASSERT_NE(object, nullptr);
    EXPECT_EQ(chunk_code(object), size <= kLargeMost ? kCodeLarge : kCodeHugeStart) << size;
    EXPECT_GE(usable(object), size <= kMediumMost ? info_of(bin_of(size)).size : size);
    fill(object, size, 3);
    EXPECT_TRUE(filled(object, size, 3));
    EXPECT_EQ((sums() - before).freed, objects);
    release_sized(object, size, "test");
    ++objects;
    bytes += size;
    EXPECT_EQ((sums() - before).freed, objects) << size;
  }
  const Sums seen = sums() - before;
  EXPECT_EQ(seen.chosen, objects);
  EXPECT_EQ(seen.chosen_bytes, bytes);
}

// As if it had been copied: one is freed, and the other one is nobody's choice while the seam is open.
TEST_F(Seam, ResizedInPlaceOrMovedByPagesItIsAnotherOne) {
  ASSERT_TRUE(seam_close(1));
  void* large = alloc(kMiB);
  void* huge = alloc(20 * kMiB);
  ASSERT_TRUE(seam_open());
  const Sums before = sums();
  large = reallocate(large, 1, kMiB / 2, "test");
  huge = reallocate(huge, 1, 60 * kMiB, "test");
  EXPECT_EQ((sums() - before).freed, 2u);
  free_object(large);
  free_object(huge);
  EXPECT_EQ((sums() - before).freed, 2u);
  // Their places are not seen any more.
  free_object(alloc(kMiB / 2));
  free_object(alloc(60 * kMiB));
  EXPECT_EQ((sums() - before).freed, 2u);
}

TEST_F(Seam, AFreeOfOneThatWasFreedIsOneOfALargeObject) {
  ASSERT_TRUE(seam_close(1));
  void* const object = alloc(200);
  ASSERT_TRUE(seam_open());
  const Sums before = sums();
  EXPECT_TRUE(large_free(object));
  EXPECT_FALSE(large_free(object));
  EXPECT_EQ((sums() - before).freed, 0u);
}

// Each object stands for size / (1 - exp(-size / interval)) bytes: so the sum is right in the mean, whatever the sizes.
TEST_F(Seam, TheChosenStandForAll) {
  constexpr size_t kInterval = 64 * kKiB;
  double sum_of_squares = 0;
  for (const size_t size : {16ul, 1000ul, 30000ul, 100000ul, 3 * kMiB}) {
    const uint64_t bytes = uint64_t{rounds(600)} * kInterval * (size > kInterval ? size / kInterval : 1);
    ASSERT_TRUE(seam_close(kInterval));
    const Sums before = sums();
    uint64_t calls = 0;
    for (uint64_t done = 0; done < bytes; done += size, ++calls) free_object(alloc(size));
    ASSERT_TRUE(seam_open());
    const Sums seen = sums() - before;
    EXPECT_EQ(seen.freed, seen.chosen);
    EXPECT_EQ(seen.calls, 0u) << "what is chosen from is not counted";
    const double chance = 1 - exp(-static_cast<double>(size) / kInterval);
    const double expected = static_cast<double>(calls) * chance;
    const double deviation = sqrt(expected * (1 - chance)) + 1e-9;
    EXPECT_LT(fabs(static_cast<double>(seen.chosen) - expected), 5 * deviation + 1) << size;
    sum_of_squares += pow((static_cast<double>(seen.chosen) - expected) / deviation, 2);
  }
  EXPECT_LT(sum_of_squares, 30.0);
}

// A request that nothing can serve does not count: it would be followed by none that is chosen.
TEST_F(Seam, WhatCannotBeServedSilencesNothing) {
  ASSERT_TRUE(seam_close(1000));
  EXPECT_EQ(opaque(allocate((size_t{1} << 63) + (size_t{1} << 41))), nullptr);
  const Sums before = sums();
  for (unsigned i = 0; i < 10000; ++i) free_object(alloc(100));
  EXPECT_GT((sums() - before).chosen, 500u);
}

TEST_F(Seam, WeightsAreThoseOfTheChance) {
  for (const uint64_t interval : {uint64_t{1}, uint64_t{100}, uint64_t{524288}, uint64_t{1} << 40}) {
    for (const size_t size : edge_sizes()) {
      const double x = static_cast<double>(size) / static_cast<double>(interval);
      const double exact = size == 0 ? 0 : static_cast<double>(size) / -expm1(-x);
      EXPECT_NEAR(static_cast<double>(seam_weight(size, interval)), exact, 1 + exact * 1e-8) << size << ' ' << interval;
    }
  }
}

// A tool that closed it and is gone: counting, or choosing.
TEST_F(Seam, OpensByItselfWhenItsTimeIsOver) {
  // Also where none was chosen since.
  for (const uint64_t interval : {uint64_t{0}, uint64_t{1000}, uint64_t{1} << 40}) {
    const unsigned calls = interval <= 1000 ? 5000 : 50000;
    ASSERT_TRUE(seam_close(interval));
    seam_setting.until_ms.set(os::now_ms() + 1'000'000);
    for (unsigned i = 0; i < calls; ++i) free_object(alloc(100));
    EXPECT_EQ(seam_mode.load(order::relaxed), kClosed);
    seam_setting.until_ms.set(1);
    for (unsigned i = 0; i < calls; ++i) free_object(alloc(100));
    expect_open();
  }
  ASSERT_TRUE(seam_close(1000));  // who closes it in the program sets no time
  EXPECT_EQ(seam_setting.until_ms.get(), 0u);
}

// Exactly as many as there were between two moments at which nothing is in flight; and none before or after.
TEST_F(Seam, ThreadsThatRunAreCountedExactly) {
  constexpr unsigned kThreads = 8, kPhases = 4;
  const unsigned each = rounds(20000);
  std::atomic<unsigned> phase{0}, ready{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (unsigned p = 1; p <= kPhases; ++p) {
        while (phase.load() < p) std::this_thread::yield();
        void* live[64] = {};
        for (unsigned i = 0; i < each; ++i) {
          void*& slot = live[random() % 64];
          free_object(slot);
          slot = alloc(random() % 5000);
        }
        for (void* object : live) free_object(object);
        ++ready;
      }
    });
  }
  for (unsigned p = 1; p <= kPhases; ++p) {
    ASSERT_TRUE(p % 2 == 0 ? seam_close(0) : seam_open());
    const Sums before = sums();
    phase = p;
    while (ready.load() < p * kThreads) std::this_thread::yield();
    EXPECT_EQ((sums() - before).calls, p % 2 == 0 ? uint64_t{kThreads} * each : 0) << p;
  }
  for (std::thread& thread : threads) thread.join();
}

// Switched as fast as it can be, and choosing all the time: nothing is lost, and what is chosen is freed as often.
TEST_F(Seam, SwitchedWhileThreadsAllocate) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  const Sums before = sums();
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<std::pair<char*, size_t>> live(100);
      while (!stop) {
        auto& [object, size] = live[random() % live.size()];
        if (object != nullptr) {
          EXPECT_EQ(static_cast<unsigned char>(object[0]), size % 251);
          EXPECT_EQ(static_cast<unsigned char>(object[size - 1]), size % 251);
          free_object(object);
        }
        size = 1 + random() % (random() % 16 == 0 ? 100000 : 700);
        object = static_cast<char*>(alloc(size));
        memset(object, static_cast<int>(size % 251), size);
      }
      for (auto& [object, size] : live) free_object(object);
    });
  }
  // Until some were chosen: on a busy machine the threads may not have run yet.
  for (unsigned i = 0; i < rounds(3000) || (sums() - before).chosen == 0; ++i) {
    ASSERT_TRUE(i % 2 == 0 ? seam_close(2000) : seam_open());
    if (i % 16 == 0) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  const Sums seen = sums() - before;
  EXPECT_EQ(seen.freed, seen.chosen);
}

// As a tool does it: by system calls of another process.
TEST_F(Seam, AnotherProcessMaySwitchIt) {
  int reported[2];
  ASSERT_EQ(pipe(reported), 0);
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t before = sums().calls;
    bool said = false;
    for (;;) {
      void* objects[300];
      for (void*& object : objects) object = alloc(100);
      for (void* object : objects) free_object(object);
      if (!said && sums().calls > before + 1000) said = write(reported[1], "c", 1) == 1;
      if (said && seam_mode.load(order::relaxed) == kOpen) {
        const uint64_t then = sums().calls;
        for (unsigned i = 0; i < 1000; ++i) free_object(alloc(100));
        _exit(sums().calls == then ? kPassed : kFailed);
      }
    }
  }
  const auto put = [&](void* at, auto value) {
    const iovec here{&value, sizeof value}, there{at, sizeof value};
    return process_vm_writev(child, &here, 1, &there, 1, 0) == static_cast<ssize_t>(sizeof value);
  };
  // To close: the mode and then the front; to open, the other way.
  static const Front open_front = front, closed_front{};
  const bool may =
      put(&seam_setting.interval, uint64_t{0}) && put(&seam_mode, uint32_t{kClosed}) && put(&front, closed_front);
  char letter = 0;
  if (may) {
    EXPECT_EQ(read(reported[0], &letter, 1), 1);
    EXPECT_TRUE(put(&front, open_front) && put(&seam_mode, uint32_t{kOpen}));
  } else {
    kill(child, SIGKILL);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  close(reported[0]);
  close(reported[1]);
  if (!may) GTEST_SKIP() << "no other process may be written to here";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kPassed) << status;
}

// The front goes with the mode: all sizes are sampled, or none.
bool front_follows_mode() {
  const bool open = seam_mode.load(order::relaxed) == kOpen;
  bool alike = true;
  for (size_t size = 0; size <= kSmallTableMost; ++size)
    alike &= front_small_cursor(size) == (open ? kSizes.small_cursor[size] : 0);
  for (size_t size = 1; size <= kMediumMost; size += 64)
    alike &= front_medium_bin(size) == (open ? kSizes.medium_bin[(size + 63) / 64] : 0);
  return alike;
}

// Two threads change it all the time; a child must never find that somebody is at it still, nor a change half made.
TEST_F(Seam, AChildOfAForkMayChangeIt) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    for (unsigned i = 0; !stop; ++i) i % 2 == 0 ? seam_close(0) : seam_open();
  });
  for (unsigned i = 0; i < rounds(400); ++i) {
    EXPECT_EQ(in_child([] {
                if (!front_follows_mode()) return kFailed;
                if (!seam_close(0)) return kFailed;
                const uint64_t before = sums().calls;
                for (unsigned k = 0; k < 1000; ++k) free_object(alloc(100 + k));
                return sums().calls == before + 1000 ? kPassed : kFailed;
              }),
              kPassed);
  }
  stop = true;
  other.join();
}

TEST_F(Seam, WhatCannotBeHadLeavesAllAsItWas) {
  ASSERT_TRUE(seam_close(1));
  errno = 0;
  EXPECT_EQ(alloc(opaque(~size_t{0})), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(alloc(opaque(size_t{1} << 62)), nullptr);
  void* const object = alloc(100);
  EXPECT_NE(object, nullptr);
  free_object(object);
}

// Chosen or not, a request that gets no memory is one.
TEST_F(Seam, WhatIsRefusedIsRefusedOnce) {
  EXPECT_EQ(in_child([] {
              ladder_set(0, static_cast<int64_t>(64 * kMiB));
              if (!seam_close(1)) return kFailed;
              for (const size_t size : {8 * kMiB, 200 * kMiB}) {
                std::vector<void*> objects;
                const uint64_t before = limit_state.refused.get();
                while (void* const object = alloc(size)) objects.push_back(object);
                if (limit_state.refused.get() != before + 1) return kFailed;
                for (void* const object : objects) free_object(object);
              }
              return kPassed;
            }),
            kPassed);
}

}  // namespace
