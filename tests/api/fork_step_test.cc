// fork at every instruction of malloc and free: one thread steps through its calls (the trap flag), stops at
// the k-th instruction, and another thread forks. The child must find every cache as it may use it, and what is live
// untouched. Only the slow paths are stepped through at length; of fast calls there are two.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>

#include <atomic>
#include <string>
#include <thread>

#include "support.h"

using namespace folio_test;

#if defined(__x86_64__)

namespace {

constexpr int kChildSeconds = 200;
constexpr unsigned kObjects = 140;   // more than two magazines hold, so that each sweep leaves the fast path
constexpr unsigned kFastSteps = 40;  // a call that takes fewer has not
constexpr unsigned kWholeCalls = 2;  // calls whose fast path is stepped through, too
constexpr long kTrapFlag = 0x100;

// Between the stepping thread and its handler.
volatile unsigned steps_of_call, call_number;
volatile unsigned long counted_steps, stop_at;
volatile sig_atomic_t stepping;
// Between the stepping thread and the one that forks.
std::atomic<bool> stopped, go_on, done;

void on_step(int, siginfo_t*, void* context) {
  steps_of_call = steps_of_call + 1;
  if (stepping != 0 && (call_number < kWholeCalls || steps_of_call > kFastSteps)) {
    counted_steps = counted_steps + 1;
    if (counted_steps == stop_at) {
      stopped = true;
      while (!go_on) sched_yield();
      stepping = 0;
    }
  }
  if (stepping == 0) static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
}

// From the next instruction on the handler runs after each. Below the red zone, which the compiler may be using.
inline void start_stepping() {
  stepping = 1;
  asm volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp"
               :
               :
               : "memory", "cc");
}
inline void stop_stepping() { stepping = 0; }

void* objects[kObjects];

// Allocates or frees all, and steps through it as far as stop_at.
void run_calls(bool allocate, size_t bytes) {
  for (unsigned i = 0; i < kObjects; i++) {
    call_number = i;
    steps_of_call = 0;
    if (stop_at != 0 && counted_steps < stop_at) start_stepping();
    if (allocate) {
      objects[i] = opaque(malloc(bytes));
    } else {
      free(objects[i]);
    }
    stop_stepping();
  }
}

// Of each size some that nobody may touch, and some that the child frees.
constexpr unsigned kKept = 200;
void* kept[kKept];

// In the child: all that was cached anywhere goes back to its folio, where a stray or a second free is found (the
// process aborts); nothing is handed out that is live.
int child_checks(size_t bytes) {
  folio_collect();
  constexpr unsigned kFresh = 3 * kObjects;
  static void* fresh[kFresh];
  const unsigned count = bytes > 65536 ? 20 : kFresh;
  for (unsigned round = 0; round < 2; round++) {
    for (unsigned i = 0; i < count; i++) {
      fresh[i] = opaque(malloc(bytes));
      if (fresh[i] == nullptr) return 2;
      fill(fresh[i], std::min<size_t>(bytes, 200), i + 1000);
    }
    for (unsigned i = 0; i < count; i++) {
      if (first_difference(fresh[i], std::min<size_t>(bytes, 200), i + 1000) < std::min<size_t>(bytes, 200)) return 3;
      free(fresh[i]);
    }
    folio_collect();
  }
  for (unsigned i = 0; i < kKept; i++) {
    if (first_difference(kept[i], std::min<size_t>(bytes, 200), i) < std::min<size_t>(bytes, 200)) return 4;
  }
  return 0;
}

struct Sweep {
  size_t bytes;
  bool frees;          // steps through free, else through malloc
  unsigned long most;  // as many instructions at most
  unsigned long step;  // every so many
};

// One run of the calls in a thread of its own that lives through the sweep, so that its caches are warm.
void stepping_thread(const Sweep* sweep, std::atomic<unsigned long>* ask, std::atomic<bool>* stop) {
  while (!*stop) {
    const unsigned long at = ask->exchange(0);
    if (at == 0) {
      sched_yield();
      continue;
    }
    counted_steps = 0;
    stop_at = sweep->frees ? 0 : at;
    run_calls(true, sweep->bytes);
    stop_at = sweep->frees ? at : 0;
    run_calls(false, sweep->bytes);
    done = true;
  }
}

class ForkStep : public testing::TestWithParam<Sweep> {};

TEST_P(ForkStep, AtEveryInstruction) {
  const Sweep sweep = GetParam();
  struct sigaction action = {};
  action.sa_sigaction = on_step;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGTRAP, &action, nullptr), 0);
  for (unsigned i = 0; i < kKept; i++) {
    kept[i] = opaque(malloc(sweep.bytes));
    fill(kept[i], std::min<size_t>(sweep.bytes, 200), i);
  }
  std::atomic<unsigned long> ask{0};
  std::atomic<bool> stop{false};
  std::thread thread(stepping_thread, &sweep, &ask, &stop);
  unsigned long at = 1;
  for (bool more = true; more && at <= sweep.most && !testing::Test::HasFailure(); at += sweep.step) {
    stopped = go_on = done = false;
    ask = at;
    while (!stopped && !done) sched_yield();
    more = stopped;
    if (!stopped) break;
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(kChildSeconds);
      _exit(child_checks(sweep.bytes));
    }
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << "forked at instruction " << at;
    go_on = true;
    while (!done) sched_yield();
  }
  go_on = stop = true;
  thread.join();
  EXPECT_GT(at, 100u) << "instructions stepped through";
  RecordProperty("instructions", static_cast<int>(at));
  for (void* object : kept) free(object);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ForkStep,
                         testing::Values(Sweep{64, true, 2500, 1}, Sweep{64, false, 2500, 1},
                                         Sweep{1500, true, 1500, 1}, Sweep{1500, false, 1500, 1},
                                         Sweep{100000, true, 1500, 3}, Sweep{100000, false, 1500, 3}),
                         [](const testing::TestParamInfo<Sweep>& test) {
                           return (test.param.frees ? "Free" : "Malloc") + std::to_string(test.param.bytes);
                         });

}  // namespace

#endif
