// fork at every instruction of malloc and free: one thread steps through its calls (the trap flag), stops at each
// instruction, and another thread forks then, or the handler itself. The child must find every cache as it may use it,
// and what is live untouched; if the handler forked, it also finishes the call. Only the slow paths are stepped through
// at length; of fast calls there are two.
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
// Where the handler forks.
volatile sig_atomic_t handler_forks, is_child;
volatile unsigned long failed_at;  // the first instruction whose child failed

void turn_to(Turn next) {
  turn = next;
  turn.notify_all();
}

// The child returns from the handler and goes on.
void fork_here() {
  const pid_t pid = fork();
  if (pid == 0) {
    is_child = 1;
    stepping = 0;
    alarm(kChildSeconds);
    return;
  }
  int status = -1;
  if ((waitpid(pid, &status, 0) != pid || status != 0) && failed_at == 0) failed_at = counted_steps;
}

void on_step(int, siginfo_t*, void* context) {
  steps_of_call = steps_of_call + 1;
  if (stepping != 0 && (call_number < kWholeCalls || steps_of_call > kFastSteps)) {
    counted_steps = counted_steps + 1;
    if (counted_steps == stop_at) {
      if (handler_forks != 0) {
        fork_here();
      } else {
        turn_to(Turn::kStopped);
        turn.wait(Turn::kStopped);
      }
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

int child_checks(size_t bytes);

// In a child that the handler made, after the call in which it did: what that has returned is nobody else's.
void end_as_child(void* returned, size_t bytes) {
  const size_t some = std::min<size_t>(bytes, 200);
  if (returned != nullptr) fill(returned, some, 7);
  const int result = child_checks(bytes);
  _exit(result != 0 ? result : returned != nullptr && first_difference(returned, some, 7) < some ? 5 : 0);
}

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
    if (is_child != 0) end_as_child(allocate ? objects[i] : nullptr, bytes);
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

// Where the caches are warm: once through without a stop, then with them. (To begin anew for each stop took three
// minutes a sweep in place of some seconds: a step is a signal.)
void step_through(const Sweep& sweep) {
  run_calls(true, sweep.bytes, false);
  run_calls(false, sweep.bytes, false);
  counted_steps = 0;
  stop_at = 1;
  every = sweep.step;
  most = sweep.most;
  run_calls(true, sweep.bytes, !sweep.frees);
  run_calls(false, sweep.bytes, sweep.frees);
}
void stepping_thread(const Sweep* sweep) {
  step_through(*sweep);
  turn_to(Turn::kDone);
}

void prepare(const Sweep& sweep) {
  struct sigaction action = {};
  action.sa_sigaction = on_step;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGTRAP, &action, nullptr), 0);
  for (unsigned i = 0; i < kKept; i++) {
    kept[i] = opaque(malloc(sweep.bytes));
    fill(kept[i], std::min<size_t>(sweep.bytes, 200), i);
  }
}

// Nor did all these forks do anything to the parent.
void finish(const Sweep& sweep, unsigned long at) {
  EXPECT_GT(at, 100u) << "instructions stepped through";
  testing::Test::RecordProperty("instructions", static_cast<int>(at));
  EXPECT_EQ(child_checks(sweep.bytes), 0);
  for (void* object : kept) free(object);
}

class ForkStep : public testing::TestWithParam<Sweep> {};

TEST_P(ForkStep, AtEveryInstruction) {
  const Sweep sweep = GetParam();
  prepare(sweep);
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
  finish(sweep, at);
}

// By the handler, in a process of one thread: the child is alone, but in the middle of its own call.
class ForkInHandler : public testing::TestWithParam<Sweep> {};

TEST_P(ForkInHandler, AtEveryInstruction) {
  const Sweep sweep = GetParam();
  prepare(sweep);
  handler_forks = 1;
  step_through(sweep);
  EXPECT_EQ(failed_at, 0u) << "the first instruction whose child failed";
  finish(sweep, counted_steps);
}

const auto kSweeps =
    testing::Values(Sweep{64, true, 2500, 1}, Sweep{64, false, 2500, 1}, Sweep{1500, true, 1500, 1},
                    Sweep{1500, false, 1500, 1}, Sweep{100000, true, 1500, 3}, Sweep{100000, false, 1500, 3});
std::string name_of(const testing::TestParamInfo<Sweep>& test) {
  return (test.param.frees ? "Free" : "Malloc") + std::to_string(test.param.bytes);
}
INSTANTIATE_TEST_SUITE_P(Sizes, ForkStep, kSweeps, name_of);
INSTANTIATE_TEST_SUITE_P(Sizes, ForkInHandler, kSweeps, name_of);

}  // namespace

#endif
