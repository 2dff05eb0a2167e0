// A handler that interrupts malloc and does not itself allocate is harmless.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "support.h"

using namespace folio_test;

namespace {

std::atomic<unsigned> ticks;

void on_tick(int) { ticks.fetch_add(1, std::memory_order_relaxed); }

// How long the threads work: a second, and until there were so many ticks, which on a busy machine may take longer.
bool enough(std::chrono::steady_clock::time_point begin, unsigned least) {
  const auto time = std::chrono::steady_clock::now() - begin;
  return time > std::chrono::seconds(60) || (time > std::chrono::seconds(1) && ticks > least);
}

// Allocates for that long and checks that contents hold.
void work(unsigned seed, unsigned least, std::atomic<bool> *good) {
  const auto begin = std::chrono::steady_clock::now();
  void *objects[128] = {};
  size_t sizes[128] = {};
  for (unsigned step = seed; step % 64 != 0 || !enough(begin, least); step++) {
    unsigned slot = step * 11 % 128;
    if (objects[slot] != nullptr) {
      const unsigned char *byte = static_cast<unsigned char *>(objects[slot]);
      if (byte[0] != (slot + seed) % 256 || byte[sizes[slot] - 1] != (slot + seed) % 256) *good = false;
      free(objects[slot]);
    }
    sizes[slot] = 1 + (step % 600 == 0 ? 2000000 : step % 20 == 0 ? 50000 : step * 17 % 1500);
    objects[slot] = opaque(malloc(sizes[slot]));
    memset(objects[slot], static_cast<int>((slot + seed) % 256), sizes[slot]);
  }
  for (void *object : objects) free(object);
}

void install(int flags) {
  struct sigaction action = {};
  action.sa_handler = on_tick;
  action.sa_flags = flags;
  ASSERT_EQ(sigaction(SIGPROF, &action, nullptr), 0);
}

void run_threads(unsigned count, unsigned least, void (*while_running)(const std::vector<std::thread> &)) {
  std::atomic<bool> good{true};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < count; t++) threads.emplace_back(work, t, least, &good);
  while_running(threads);
  for (std::thread &thread : threads) thread.join();
  EXPECT_TRUE(good);
}

// A profiler's timer at 1 kHz, delivered to whichever thread runs.
TEST(Signals, ProfilerTimer) {
  ticks = 0;
  install(SA_RESTART);
  timer_t timer;
  struct sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGPROF;
  ASSERT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
  struct itimerspec every = {{0, 1000000}, {0, 1000000}};
  ASSERT_EQ(timer_settime(timer, 0, &every, nullptr), 0);
  run_threads(4, 300, [](const std::vector<std::thread> &) {});
  timer_delete(timer);
  EXPECT_GT(ticks, 300u);
}

// As fast as signals can be sent to each thread, without SA_RESTART, so that system calls inside are interrupted, too.
TEST(Signals, StormToEveryThread) {
  ticks = 0;
  install(0);
  run_threads(3, 1000, [](const std::vector<std::thread> &threads) {
    const auto begin = std::chrono::steady_clock::now();
    while (!enough(begin, 1000)) {
      for (const std::thread &thread : threads) {
        pthread_kill(const_cast<std::thread &>(thread).native_handle(), SIGPROF);
      }
      usleep(50);
    }
  });
  EXPECT_GT(ticks, 1000u);
}

// On an alternate stack, as crash reporters do.
TEST(Signals, OnAnAlternateStack) {
  ticks = 0;
  static char stack[64 * 1024];
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  ASSERT_EQ(sigaltstack(&alternate, nullptr), 0);
  install(SA_ONSTACK | SA_RESTART);
  struct itimerval every = {{0, 1000}, {0, 1000}};
  ASSERT_EQ(setitimer(ITIMER_PROF, &every, nullptr), 0);
  std::atomic<bool> good{true};
  work(1, 50, &good);
  every = {};
  setitimer(ITIMER_PROF, &every, nullptr);
  EXPECT_TRUE(good);
  EXPECT_GT(ticks, 50u);
  alternate.ss_flags = SS_DISABLE;
  sigaltstack(&alternate, nullptr);
}

// A handler that a thread calls by itself may free, also on a small stack: the kernel's frame and 4.5 KiB, as in the 8
// KiB that SIGSTKSZ once was. What takes the most is frees in random order, that go back to their folios.
std::vector<void *> to_free;

TEST(Signals, FreesFitOnASmallAlternateStack) {
  constexpr size_t kOwn = 4560, kGuard = 4096;
  const size_t room = static_cast<size_t>(sysconf(_SC_MINSIGSTKSZ)) + kOwn,
               bytes = (room + kGuard - 1) / kGuard * kGuard;
  char *const memory =
      static_cast<char *>(mmap(nullptr, kGuard + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  memset(memory, 0x5a, kGuard + bytes);
  char *const lowest = memory + kGuard + bytes - room;
  stack_t alternate = {};
  alternate.ss_sp = memory;  // what is below `lowest` shows whether it was enough
  alternate.ss_size = kGuard + bytes;
  ASSERT_EQ(sigaltstack(&alternate, nullptr), 0);
  struct sigaction action = {};
  action.sa_handler = [](int) {
    for (void *object : to_free) free(object);
  };
  action.sa_flags = SA_ONSTACK;
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  std::thread([] {}).join();  // the depot is open
  for (const size_t size : {16, 48, 64, 400, 3000, 8192}) {
    to_free.resize(100000);
    for (void *&object : to_free) ASSERT_NE(object = malloc(size), nullptr);
    for (size_t i = 0; i < to_free.size(); ++i) std::swap(to_free[i], to_free[i * 7919 % to_free.size()]);
    ASSERT_EQ(raise(SIGUSR1), 0);
    size_t untouched = 0;
    while (memory + untouched < lowest && memory[untouched] == 0x5a) ++untouched;
    EXPECT_EQ(memory + untouched, lowest) << size << "-byte objects take more of the stack";
  }
  to_free = {};
  alternate.ss_flags = SS_DISABLE;
  sigaltstack(&alternate, nullptr);
  munmap(memory, kGuard + bytes);
}

// The questions that folio.h calls harmless anywhere are asked from the handler.
std::atomic<void *> asked{nullptr};

TEST(Signals, HandlersMayAsk) {
  ticks = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) {
    folio_place place;
    void *object = asked;
    if (folio_is_ours(object) && folio_locate(object, &place)) ticks.fetch_add(1, std::memory_order_relaxed);
  };
  ASSERT_EQ(sigaction(SIGPROF, &action, nullptr), 0);
  void *object = opaque(malloc(100));
  asked = object;
  struct itimerval every = {{0, 1000}, {0, 1000}};
  ASSERT_EQ(setitimer(ITIMER_PROF, &every, nullptr), 0);
  std::atomic<bool> good{true};
  work(2, 50, &good);
  every = {};
  setitimer(ITIMER_PROF, &every, nullptr);
  EXPECT_TRUE(good);
  EXPECT_GT(ticks, 50u);
  free(object);
}

}  // namespace
