// fork at every instruction of malloc and free: one thread steps through its calls (the trap flag), stops at each
// instruction, and another thread forks then. The child must find every cache as it may use it, and what is live
// untouched. Only the slow paths are stepped through at length; of fast calls there are two.
#include <pthread.h>
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
volatile unsigned long counted_steps, stop_at, every, most;
volatile sig_atomic_t stepping;
// Between the stepping thread and the one that forks. Both sleep while it is not theirs: to spin would take as long as
// the machine's other work lets it.
enum class Turn { kSteps, kStopped, kDone };
std::atomic<Turn> turn;

void turn_to(Turn next) {
  turn = next;
  turn.notify_all();
}

void on_step(int, siginfo_t*, void* context) {
  steps_of_call = steps_of_call + 1;
  if (stepping != 0 && (call_number < kWholeCalls || steps_of_call > kFastSteps)) {
    counted_steps = counted_steps + 1;
    if (counted_steps == stop_at) {
      turn_to(Turn::kStopped);
      turn.wait(Turn::kStopped);
      stop_at = stop_at + every;
      if (stop_at > most) stepping = 0;
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

// Allocates or frees all, and steps through it if asked to, as far as `most`.
void run_calls(bool allocate, size_t bytes, bool steps) {
  for (unsigned i = 0; i < kObjects; i++) {
    call_number = i;
    steps_of_call = 0;
    if (steps && stop_at <= most) start_stepping();
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

// In a thread of its own, whose caches are warm: once through without a stop, then with them. (To begin anew for each
// stop took three minutes a sweep in place of some seconds: a step is a signal.)
void stepping_thread(const Sweep* sweep) {
  run_calls(true, sweep->bytes, false);
  run_calls(false, sweep->bytes, false);
  counted_steps = 0;
  stop_at = 1;
  every = sweep->step;
  most = sweep->most;
  run_calls(true, sweep->bytes, !sweep->frees);
  run_calls(false, sweep->bytes, sweep->frees);
  turn_to(Turn::kDone);
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
  turn = Turn::kSteps;
  std::thread thread(stepping_thread, &sweep);
  unsigned long at = 0;
  for (;;) {
    turn.wait(Turn::kSteps);
    if (turn == Turn::kDone) break;
    at = counted_steps;
    if (!testing::Test::HasFailure()) {
      const pid_t pid = fork();
      if (pid == 0) {
        alarm(kChildSeconds);
        _exit(child_checks(sweep.bytes));
      }
      int status = -1;
      EXPECT_EQ(waitpid(pid, &status, 0), pid);
      EXPECT_EQ(status, 0) << "forked at instruction " << at;
    }
    turn_to(Turn::kSteps);
  }
  thread.join();
  EXPECT_GT(at, 100u) << "instructions stepped through";
  RecordProperty("instructions", static_cast<int>(at));
  // Nor did all these forks do anything to the parent.
  EXPECT_EQ(child_checks(sweep.bytes), 0);
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
