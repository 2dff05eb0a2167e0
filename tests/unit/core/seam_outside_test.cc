// The seam as tools outside use it: another process switches it, by system calls alone, while threads allocate and
// fork.
#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <atomic>
#include <new>
#include <random>
#include <thread>

#include "core/seam.h"
#include "unit/child.h"
#include "unit/core/heap.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr unsigned kThreads = 4;
constexpr uint64_t kExact = 1000;  // calls of each thread that are counted one by one

uint64_t calls_seen() {
  uint64_t sum = 0;
  for (const SeamCounts& each : seam_counts) {
    for (const auto& calls : each.calls) sum += calls.get();
  }
  return sum;
}
uint64_t chosen_seen() {
  uint64_t sum = 0;
  for (const SeamCounts& each : seam_counts) sum += each.chosen.get();
  return sum;
}
uint64_t freed_seen() {
  uint64_t sum = 0;
  for (const SeamCounts& each : seam_counts) sum += each.freed.get();
  return sum;
}

// What the program and the tool say to each other, in memory that both have.
struct Shared {
  std::atomic<unsigned> step{0};    // of the tool
  std::atomic<unsigned> ready{0};   // threads that have done it
  std::atomic<unsigned> forked{0};  // children that did what they should
  std::atomic<unsigned> failed{0};
  std::atomic<uint64_t> chosen{0}, freed{0};
};
enum Step : unsigned { kRun, kRest, kCount, kEnd };

// The tool: writes into the program `pid`, which is a fork of this process, so that its data have the same addresses.
class Tool {
 public:
  explicit Tool(pid_t pid) : pid_(pid) {}

  // The mode and then the front. False where no other process may be written to.
  bool close(uint64_t interval) {
    static const Front closed{};
    return put(&seam_setting.interval, interval) && put(&seam_setting.number, ++number_) &&
           put(&seam_mode, uint32_t{kClosed}) && put(&front, closed);
  }
  // The other way round.
  bool open() { return put(&front, open_) && put(&seam_mode, uint32_t{kOpen}); }

 private:
  template <class T>
  bool put(void* at, const T& value) {
    const iovec here{const_cast<T*>(&value), sizeof value}, there{at, sizeof value};
    return process_vm_writev(pid_, &here, 1, &there, 1, 0) == static_cast<ssize_t>(sizeof value);
  }

  pid_t pid_;
  uint32_t number_ = 100;
  Front open_ = front;  // this process's own is open
};

class Objects {
 public:
  explicit Objects(unsigned seed) : random_(seed) {}

  // Frees one and allocates another in its place. False if its bytes are not what they were.
  bool replace() {
    auto& [object, size] = live_[random_() % live_.size()];
    if (object != nullptr) {
      if (!filled(object, size, 1)) return false;
      if (random_() % 2 == 0) {
        free_object(object);
      } else {
        release_sized(object, size, "free_sized");
      }
    }
    size = 1 + random_() % (random_() % 16 == 0 ? 100000 : 700);
    object = alloc(size);
    if (object == nullptr) return false;
    fill(object, size, 1);
    return true;
  }
  void free_all() {
    for (auto& [object, size] : live_) free_object(object);
    live_.assign(live_.size(), {});
  }

 private:
  std::mt19937 random_;
  std::vector<std::pair<void*, size_t>> live_{60};
};

// One thread of the program; the first one forks now and then. What a child allocates and frees is its own.
void work(Shared& shared, unsigned t) {
  Objects objects(t);
  unsigned step = kRun, rounds_done = 0;
  const auto check = [&](bool right) {
    if (!right) ++shared.failed;
  };
  while (step != kEnd) {
    if (step == kRun) {
      for (unsigned i = 0; i < 100; ++i) check(objects.replace());
      if (t == 0 && ++rounds_done % 8 == 0) {
        const int status = in_child([&] {
          for (unsigned i = 0; i < 3000; ++i) {
            if (!objects.replace()) return kFailed;
          }
          objects.free_all();
          // Whatever a fork found of a change: it may be switched here, and then counts.
          if (!seam_close(0)) return kFailed;
          const uint64_t before = calls_seen();
          for (unsigned i = 0; i < kExact; ++i) free_object(alloc(i));
          if (calls_seen() != before + kExact || !seam_open()) return kFailed;
          for (unsigned i = 0; i < kExact; ++i) free_object(alloc(i));
          return calls_seen() == before + kExact ? kPassed : kFailed;
        });
        check(status == kPassed);
        ++shared.forked;
      }
    } else if (step == kCount) {
      for (unsigned i = 0; i < kExact; ++i) free_object(alloc(i * 3));
    } else {
      objects.free_all();
    }
    if (step != kRun) {
      ++shared.ready;
      while (shared.step == step) std::this_thread::yield();
    }
    step = shared.step;
  }
  objects.free_all();
}

[[noreturn]] void program(Shared& shared) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) threads.emplace_back([&, t] { work(shared, t); });
  for (std::thread& thread : threads) thread.join();
  shared.chosen = chosen_seen();
  shared.freed = freed_seen();
  _exit(kPassed);
}

bool all_ready(Shared& shared, unsigned step, pid_t pid) {
  shared.ready = 0;
  shared.step = step;
  while (shared.ready < kThreads) {
    if (kill(pid, 0) != 0 || waitpid(pid, nullptr, WNOHANG) == pid) return false;
    std::this_thread::yield();
  }
  return true;
}

// Switched as fast as system calls go, by turns to count and to choose, while threads allocate, free and fork: no byte
// is lost, what is chosen is freed as often, each child goes on; and when all rest, each call is counted, none twice.
TEST(SeamOutside, SwitchedWhileThreadsAllocateAndFork) {
  if (kThreadSanitizer) GTEST_SKIP() << "it starts no thread in the child of a process of several threads";
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Shared& shared = *new (memory) Shared;
  free_object(alloc(1));  // the process has started, so its fork has
  const pid_t pid = fork();
  if (pid == 0) program(shared);
  Tool tool(pid);
  bool may = tool.close(0) && tool.open();
  for (unsigned i = 0; may && (i < rounds(800) || shared.forked < rounds(10)) && shared.failed == 0; ++i) {
    may = tool.close(i % 2 == 0 ? 2000 : 0) && tool.open();
    ASSERT_LT(i, 10'000'000u) << "the program stands still";
  }
  for (unsigned round = 0; may && round < 4; ++round) {
    if (!all_ready(shared, kRest, pid)) break;
    const bool closed = round % 2 == 0;
    may = closed ? tool.close(0) : tool.open();
    SeamCounts before[kSeamShards], after[kSeamShards];
    const auto get = [&](SeamCounts(&counts)[kSeamShards]) {
      const iovec here{counts, sizeof counts}, there{seam_counts, sizeof counts};
      return process_vm_readv(pid, &here, 1, &there, 1, 0) == static_cast<ssize_t>(sizeof counts);
    };
    EXPECT_TRUE(get(before));
    if (!all_ready(shared, kCount, pid)) break;
    EXPECT_TRUE(get(after));
    uint64_t calls = 0;
    for (unsigned s = 0; s < kSeamShards; ++s) {
      for (unsigned bin = 0; bin < kBins; ++bin) calls += after[s].calls[bin].get() - before[s].calls[bin].get();
    }
    EXPECT_EQ(calls, closed ? kThreads * kExact : 0) << round;
  }
  shared.step = kEnd;
  if (!may) kill(pid, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  const unsigned failed = shared.failed;
  const uint64_t chosen = shared.chosen, freed = shared.freed;
  munmap(memory, sizeof(Shared));
  if (!may) GTEST_SKIP() << "no other process may be written to here";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kPassed) << status;
  EXPECT_EQ(failed, 0u);
  EXPECT_NE(chosen, 0u);
  EXPECT_EQ(freed, chosen);
}

}  // namespace
