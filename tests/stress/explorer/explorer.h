// Explorer: runs the real code of a few logical threads under many schedules, with the memory that C++ promises, and
// asks for a verdict after each.
//
// The threads are coroutines on one kernel thread. The code under test is built with FOLIO_EXPLORE, so it tells of each
// atomic operation (base/explored_atomic.h); there, and only there, another thread may go on, and a load may find an
// older value (memory.h). It is built with -fsanitize=thread too, without that sanitizer's library: its hooks
// (hooks.cc) tell of plain accesses, and two that race are a failure. An execution is a function of its choices, and
// can be run again.
//
//   search     depth first over all schedules with at most so many preemptions (a switch away from a thread that could
//              go on; what runs first, and what runs after a thread has finished, are free choices) and so many stale
//              reads (a load that returns another value than the newest)
//   random     seeded: by turns a random walk and PCT (random priorities, few changes of priority)
//   vanishing  one thread stops forever at its k-th point, for each k; the others must still finish
//
// A failure prints its schedule as "thread*points ... ~choice"; FOLIO_SCHEDULE="0*12 1*5 ~1 ..." makes a test run only
// that one.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cache/thread_cache.h"
#include "stress/explorer/memory.h"

namespace explorer {

using Body = std::function<void()>;

struct Plan {
  std::vector<Body> threads;
  Body reset;                            // before each execution: the same state, bit by bit
  std::function<std::string()> verdict;  // after it; empty: all is well
};

// An operation as the search sees it.
struct Touch {
  Location* location;
  bool writes;  // or may: a compare_exchange
  bool strict;  // sequentially consistent
  bool stale;   // once it ran: it did not read the newest
};

// Decides who goes on at a point, and what is read. `enabled` holds the bits of those that can go on; `current` is
// among them unless it has just finished or stopped.
class Chooser {
 public:
  static constexpr unsigned kNobody = kThreadsMost;  // the execution is of no use

  virtual ~Chooser() = default;
  virtual unsigned choose(unsigned current, uint32_t enabled) = 0;
  // 0: what comes of itself, or another one of so many.
  virtual unsigned read(unsigned /*choices*/) { return 0; }
  // The thread that was chosen did this; `word` is what it comes to next.
  virtual void touched(unsigned /*thread*/, const Touch&) {}
  virtual void comes_to(unsigned /*thread*/, uintptr_t /*word*/, const Touch&) {}
};

inline unsigned lowest(uint32_t mask) { return static_cast<unsigned>(__builtin_ctz(mask)); }

// What the code under test keeps in thread-local storage.
struct TlsImage {
  folio::ThreadCursors cursors;
  folio::ThreadState state;
};

// Thread-local storage of a logical thread, at an address of its own: that of a kernel thread which sleeps for good.
struct Storage {
  folio::ThreadCursors* cursors;
  folio::ThreadState* state;
  uintptr_t thread_pointer;

  TlsImage image() const { return {*cursors, *state}; }
  void set(const TlsImage& to) const {
    *cursors = to.cursors;
    *state = to.state;
  }
};

class Machine {
 public:
  static constexpr unsigned kThreadsMost = explorer::kThreadsMost;
  static constexpr uint64_t kStepsMost = 200000;
  static constexpr unsigned kNobody = Chooser::kNobody;

  Machine();
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Runs `body` now, as logical thread `i`; what it leaves in TLS is what is there when an execution starts, also where
  // it has no such thread.
  void prepare(unsigned i, const Body& body);

  // How the kernel sees a thread. A thread that left may have its storage unmapped, written to by the program, or left
  // as it is; the next life there begins with a new number and storage as the loader makes it. `set_life` is for who
  // prepares, `turn` for the thread itself: a point, which conflicts with all that looks at another thread.
  enum class Life : uint64_t { kRuns, kGone, kUnmapped };
  void set_life(unsigned i, Life life) { first_life_[i] = static_cast<uint64_t>(life); }
  bool lives(unsigned i) const { return (life_[i] & 3) == static_cast<uint64_t>(Life::kRuns); }
  void now_is(unsigned i, Life life) { life_[i] = (life_[i] & ~uint64_t{3}) | static_cast<uint64_t>(life); }
  void turn(Life life);
  void live_anew();
  const folio::ThreadCursors* cursors_of(unsigned i) const { return threads_[i].storage.cursors; }

  enum class End { kWhole, kCut, kOverrun };
  // One execution. kCut: the chooser gave it up; kOverrun: it took more than kStepsMost points.
  End run(const Plan& plan, Chooser& chooser);

  // All of them stop when the execution has come by so many points. 0: they do not.
  void stop_all(uint64_t at) { stop_all_at_ = at; }
  // Thread `i` stops forever when it comes to its point number `at` (from 1 on). 0: it does not.
  void stop(unsigned i, uint64_t at) { stop_at_[i] = at; }
  bool finished(unsigned i) const { return threads_[i].finished; }
  uint64_t points(unsigned i) const { return threads_[i].points; }
  uint64_t steps() const { return steps_; }
  unsigned stale_reads() const { return stale_reads_; }
  std::string race() const { return memory_.race(); }

  // Where another thread may go on.
  //   kShared   before operations on locations that threads share: one that only one thread uses, or that nobody
  //             writes, or that all only add to without reading it, makes no difference. Which those are shows by and
  //             by.
  //   kWrites   before all that write, too: for a thread that stops
  //   kAll
  enum class Points { kShared, kWrites, kAll };
  void set_points(Points points) { points_ = points; }
  // In the last execution a location turned out to be shared that was not known to be: others are to be run again.
  bool learned() const { return learned_; }

  // After an execution: runs `body` as thread `i`, with the TLS that it ended with.
  void as(unsigned i, const Body& body);

  std::string schedule() const;

  // The logical thread that runs; 0 outside an execution.
  static unsigned running() { return here_ != nullptr && here_->running_ ? here_->current_ : 0; }

  static bool explores() { return here_ != nullptr && here_->running_; }

  // What the code under test tells; for hooks.cc.
  static uint64_t operation(void* word, const folio::ExploredOp& op);
  static void result_is_read() {
    if (here_ != nullptr && here_->running_) here_->note_use(here_->last_, Location::kReads);
  }
  static void access(const void* address, size_t bytes, bool write, const void* where) {
    if (watching_) here_->note_access(reinterpret_cast<uintptr_t>(address), bytes, write, where);
  }
  // The program writes to its object, without doing so; and the kernel takes the pages of such away.
  static void write_object(const void* object) {
    if (watching_) here_->note_object(reinterpret_cast<uintptr_t>(object));
  }
  static void purge(const void* start, size_t bytes, const void* where) {
    if (watching_) here_->note_purge(reinterpret_cast<uintptr_t>(start), bytes, where);
  }
  static void commit(const void* start, size_t bytes);
  // What the kernel says of threads, and of what lies in their storage. Each returns false where it is not about one.
  static bool copy_storage(void* to, const void* from, size_t bytes, bool* mapped);
  static bool thread_id(uint32_t* id);
  static bool thread_exists(uint32_t id, bool* exists);
  // Address space that an execution reserves lies where it lay in the one before. Null outside of one.
  static void* reserve(size_t bytes, size_t alignment);
  // True: it is of that, and unmapped for all that anybody sees.
  static bool unmap(void* start, size_t bytes);

 private:
  friend class Ghost;
  static constexpr size_t kStackBytes = 256 * 1024;
  static constexpr uint8_t kRead = 0x80;  // in a trace: the last operation's choice

  struct Operand {
    void* word;
    unsigned bytes;
  };
  struct Thread {
    ucontext_t context;
    char* stack;
    Storage storage;
    TlsImage initial;
    bool finished;
    uint64_t points;
  };
  class As;  // a logical thread, in its scope

  void start(Thread& t);
  static void enter();
  void write_sites() const;
  uint64_t operate(void* word, const folio::ExploredOp& op);
  bool note_use(const Operand& operand, uint8_t uses);
  void at_point();
  void pass_by();
  unsigned chosen();
  void leave();
  void pass(unsigned from, unsigned to);
  void note_commit(uintptr_t start, size_t bytes);
  void note_object(uintptr_t object);
  void note_purge(uintptr_t start, size_t bytes, const void* where);
  void note_access(uintptr_t address, size_t bytes, bool write, const void* where);
  void note_owner();
  unsigned thread_at(const void* address) const;
  uint64_t life_of(unsigned thread);

  static inline Machine* here_ = nullptr;
  static inline bool watching_ = false;  // the code under test runs

  struct Range {
    uintptr_t start, end;
    bool holds(uintptr_t address) const { return address >= start && address < end; }
  };

  static constexpr size_t kArenaBytes = size_t{16} << 30;
  static inline char* arena_ = nullptr;  // for good: what lies there may be kept by a scenario's reset
  size_t arena_used_ = 0;

  Memory memory_;
  Thread threads_[kThreadsMost];
  Range own_[2 + kThreadsMost];  // what no other thread looks at, but by way of the kernel: stacks and TLS
  Range constants_;
  ucontext_t main_;
  uintptr_t main_pointer_ = 0;
  uint64_t first_life_[kThreadsMost] = {}, life_[kThreadsMost] = {};  // a Life, and the number of the life << 2
  uint32_t owner_written_ = 0;  // whose owner was, plainly: what the kernel shows to others
  const Plan* plan_ = nullptr;
  Chooser* chooser_ = nullptr;
  unsigned count_ = 0;
  unsigned current_ = kNobody;
  uint32_t enabled_ = 0;
  uint64_t stop_at_[kThreadsMost] = {}, stop_all_at_ = 0;
  bool running_ = false;
  End end_ = End::kWhole;
  unsigned stale_reads_ = 0;
  Points points_ = Points::kShared;
  bool learned_ = false;
  Operand last_ = {};   // of the thread that runs
  uint64_t steps_ = 0;  // choices of who goes on
  std::vector<uint8_t> trace_;
  std::set<uintptr_t> objects_;  // written to in any execution so far
  bool notes_sites_ = false;
  std::set<std::tuple<const char*, unsigned, unsigned>> sites_;  // file, line, kind
};

// In its scope the race detector looks away: the books of a test are not part of what it tests.
class Ghost {
 public:
  Ghost();
  ~Ghost();
  Ghost(const Ghost&) = delete;
  Ghost& operator=(const Ghost&) = delete;

 private:
  bool watched_;
};

// For a scenario: the kernel unmaps nothing.
inline bool keeps_address_space = false;
// And has no address space to give.
inline bool no_address_space = false;

// What was reported as misuse since a scenario's reset.
inline unsigned misuses = 0;

// Outside an execution: called before each atomic operation.
inline void (*outside_point)() = nullptr;

}  // namespace explorer
