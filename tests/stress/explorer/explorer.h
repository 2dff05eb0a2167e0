// Explorer: runs the real code of a few logical threads under many schedules and asks for a verdict after each.
//
// The threads are coroutines on one kernel thread. The code under test is built with FOLIO_EXPLORE, so it calls
// folio_explore_point() before each atomic operation; there, and only there, another thread may go on. A schedule is
// therefore a list of choices, an execution is a function of it, and any execution can be run again.
//
//   search     depth first over all schedules with at most so many preemptions (a switch away from a thread that could
//              go on; what runs first, and what runs after a thread has finished, are free choices)
//   random     seeded: by turns a random walk and PCT (random priorities, few changes of priority)
//   vanishing  one thread stops forever at its k-th point, for each k; the others must still finish
//
// A failure prints its schedule as "thread*points ..."; FOLIO_SCHEDULE="0*12 1*5 ..." makes a test run only that one.
//
// What it does not see: orders of memory (executions are sequentially consistent), and races on plain variables between
// two points. ThreadSanitizer looks for the latter.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cache/thread_cache.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace explorer {

using Body = std::function<void()>;

struct Plan {
  std::vector<Body> threads;
  Body reset;                            // before each execution: the same state, bit by bit
  std::function<std::string()> verdict;  // after it; empty: all is well
};

// Decides who goes on at a point. `enabled` holds the bits of those that can; `current` is among them unless it has
// just finished or stopped.
class Chooser {
 public:
  virtual ~Chooser() = default;
  virtual unsigned choose(unsigned current, uint32_t enabled) = 0;
};

inline unsigned lowest(uint32_t mask) { return static_cast<unsigned>(__builtin_ctz(mask)); }

// What the code under test keeps in TLS, for one logical thread.
struct LogicalTls {
  folio::ThreadTops tops;
  folio::ThreadState state;

  void load() {
    tops = folio::thread_tops;
    state = folio::thread_state;
  }
  void store() const {
    folio::thread_tops = tops;
    folio::thread_state = state;
  }
};

class Machine {
 public:
  static constexpr unsigned kThreadsMost = 4;
  static constexpr uint64_t kStepsMost = 200000;
  static constexpr unsigned kNobody = kThreadsMost;

  Machine() {
    for (Thread& t : threads_) {
      void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (stack == MAP_FAILED) abort();
      t.stack = static_cast<char*>(stack);
      t.initial.load();
    }
    here_ = this;
  }
  ~Machine() {
    for (Thread& t : threads_) munmap(t.stack, kStackBytes);
    here_ = nullptr;
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Runs `body` now, as logical thread `i`; what it leaves in TLS is what that thread starts with in every execution.
  void prepare(unsigned i, const Body& body) {
    LogicalTls mine;
    mine.load();
    threads_[i].initial.store();
    body();
    threads_[i].initial.load();
    mine.store();
  }

  // One execution. False if it took more than kStepsMost points.
  bool run(const Plan& plan, Chooser& chooser) {
    plan.reset();
    plan_ = &plan;
    chooser_ = &chooser;
    count_ = static_cast<unsigned>(plan.threads.size());
    enabled_ = (1u << count_) - 1;
    trace_.clear();
    overrun_ = false;
    for (unsigned i = 0; i < count_; ++i) start(threads_[i]);
    main_tls_.load();
    running_ = true;
    current_ = kNobody;
    pass(kNobody, chosen());
    running_ = false;
    main_tls_.store();
    return !overrun_;
  }

  // Thread `i` stops forever when it comes to its point number `at` (from 1 on). 0: it does not.
  void stop(unsigned i, uint64_t at) { stop_at_[i] = at; }
  bool finished(unsigned i) const { return threads_[i].finished; }
  uint64_t points(unsigned i) const { return threads_[i].points; }
  uint64_t steps() const { return trace_.size(); }

  // After an execution: runs `body` as thread `i`, with the TLS that it ended with.
  void as(unsigned i, const Body& body) {
    LogicalTls mine;
    mine.load();
    threads_[i].tls.store();
    body();
    threads_[i].tls.load();
    mine.store();
  }

  std::string schedule() const {
    std::string text;
    for (size_t i = 0; i < trace_.size();) {
      size_t j = i;
      while (j < trace_.size() && trace_[j] == trace_[i]) ++j;
      text += std::to_string(trace_[i]) + "*" + std::to_string(j - i) + " ";
      i = j;
    }
    return text;
  }

  // The logical thread that runs; 0 outside an execution.
  static unsigned running() { return here_ != nullptr && here_->running_ ? here_->current_ : 0; }

  static void point() {
    if (here_ != nullptr && here_->running_) here_->at_point();
  }

 private:
  static constexpr size_t kStackBytes = 256 * 1024;

  struct Thread {
    ucontext_t context;
    char* stack;
    LogicalTls initial, tls;
    bool finished;
    uint64_t points;
  };

  void start(Thread& t) {
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack;
    t.context.uc_stack.ss_size = kStackBytes;
    t.context.uc_link = nullptr;
    makecontext(&t.context, enter, 0);
    t.tls = t.initial;
    t.finished = false;
    t.points = 0;
  }

  static void enter() {
    arrived();
    Machine& m = *here_;
    m.plan_->threads[m.current_]();
    m.threads_[m.current_].finished = true;
    m.leave();
  }

  void at_point() {
    Thread& t = threads_[current_];
    ++t.points;
    if (t.points == stop_at_[current_]) return leave();
    if (trace_.size() == kStepsMost) {
      overrun_ = true;
      return pass(current_, kNobody);
    }
    const unsigned next = chosen();
    if (next != current_) pass(current_, next);
  }

  unsigned chosen() {
    const unsigned next = chooser_->choose(current_, enabled_);
    trace_.push_back(static_cast<uint8_t>(next));
    return next;
  }

  // The current thread is not to go on any more.
  void leave() {
    enabled_ &= ~(1u << current_);
    pass(current_, enabled_ == 0 ? kNobody : chosen());
  }

  void pass(unsigned from, unsigned to) {
    if (from != kNobody) threads_[from].tls.load();
    current_ = to;
    if (to != kNobody) threads_[to].tls.store();
    ucontext_t& left = from == kNobody ? main_ : threads_[from].context;
    ucontext_t& entered = to == kNobody ? main_ : threads_[to].context;
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, to == kNobody ? main_stack_ : threads_[to].stack,
                                   to == kNobody ? main_stack_bytes_ : kStackBytes);
    swapcontext(&left, &entered);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    swapcontext(&left, &entered);
#endif
  }

  static void arrived() {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (here_->main_stack_ != nullptr) return;
    here_->main_stack_ = bottom;  // the first arrival is from there
    here_->main_stack_bytes_ = bytes;
#endif
  }

  static inline Machine* here_ = nullptr;

  Thread threads_[kThreadsMost];
  ucontext_t main_;
  LogicalTls main_tls_;
  const Plan* plan_ = nullptr;
  Chooser* chooser_ = nullptr;
  unsigned count_ = 0;
  unsigned current_ = kNobody;
  uint32_t enabled_ = 0;
  uint64_t stop_at_[kThreadsMost] = {};
  bool running_ = false;
  bool overrun_ = false;
  std::vector<uint8_t> trace_;
#if defined(__SANITIZE_ADDRESS__)
  const void* main_stack_ = nullptr;
  size_t main_stack_bytes_ = 0;
#endif
};

}  // namespace explorer

extern "C" inline __attribute__((used)) void folio_explore_point(void) { explorer::Machine::point(); }
