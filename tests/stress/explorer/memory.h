// Memory as C++ has it: what each logical thread may read, and which plain accesses race.
//
//   location   the modification order of one atomic word: its stores, each with what its reader learns (its message).
//              The real word always holds the newest value.
//   clock      of a thread: how far into each thread's operations it has seen (happens-before). A release operation
//              puts it into its store's message; an acquire one joins the message that it read. A read-modify-write
//              reads the newest store and hands its message on (release sequence).
//   floor      a load may read any store that is not older than one that happens before it, or was read by
//              something that does (coherence); a sequentially consistent load none older than what such an operation
//              of it read or wrote before. Such operations are in the order in which they run.
//   commit     makes address space usable: whoever uses it later must have seen one of those who did so in this
//              execution.
//   cell       eight bytes, and who accessed them last, plainly and atomically: two accesses, one of them plain and one
//              of them a write, of which neither happens before the other, are a race.
//
// Everything before an execution happens before it. What the model does not have: stores that go into the modification
// order before one that ran earlier, and values out of thin air (load buffering).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/atomic.h"

namespace explorer {

inline constexpr unsigned kThreadsMost = 4;

struct Clock {
  uint32_t of[kThreadsMost] = {};

  void join(const Clock& other) {
    for (unsigned i = 0; i < kThreadsMost; ++i) of[i] = std::max(of[i], other.of[i]);
  }
  bool covers(const Clock& other) const {
    for (unsigned i = 0; i < kThreadsMost; ++i) {
      if (of[i] < other.of[i]) return false;
    }
    return true;
  }
};

inline bool acquires(int order) { return order != folio::order::relaxed && order != folio::order::release; }
inline bool releases(int order) { return order != folio::order::relaxed && order != folio::order::acquire; }

const char* kind_name(folio::ExploredOp::Kind kind);  // load, store, cas or rmw

// One atomic word, in one execution.
struct Location {
  struct Store {
    uint64_t value;
    Clock message;
  };
  struct Access {
    uint32_t epoch;  // of the thread
    uint32_t store;  // what it read or wrote
  };
  struct Touch {  // for the search: an operation, and the step of the schedule that it was
    uint32_t number;
    uint32_t step;
    bool writes;
  };

  // How it is used, in one execution: operations of one of the first three kinds, of which nobody reads what they read,
  // do the same in any order.
  enum Use : uint8_t { kAdds = 1, kSets = 2, kClears = 4, kReads = 8, kWrites = 16 };

  uintptr_t word = 0;
  uint32_t execution = 0;
  uint32_t used_in = 0;  // which execution `users` and `uses` are about
  uint8_t users = 0;     // threads
  uint8_t uses = 0;
  bool shared = false;  // in some execution so far, the order of the threads' operations mattered
  uint32_t strict = 0;  // no sequentially consistent load reads an older store
  std::vector<Store> stores;
  std::vector<Access> accesses[kThreadsMost];
  std::vector<Touch> touches[kThreadsMost];
  Clock writers, readers;  // of the search's order
};

class Memory {
 public:
  // Forgets everything: a new execution.
  void begin();
  // `file:line:kind=order` (kind: load, store, rmw or cas; order: or `plain`, a compare_exchange that only stores).
  void mutate(const char* text);

  Location& location(void* word, unsigned bytes);
  // Notes a use; returns whether the location is shared by now that was not.
  bool note_use(unsigned thread, Location& location, uint8_t uses) const;
  // The stores that the operation may read, the one that comes of itself first. Of those that make no difference, one.
  const std::vector<uint32_t>& readable(unsigned thread, const Location& location, const folio::ExploredOp& op);
  // Does it, reading that store; returns what it read.
  uint64_t perform(unsigned thread, Location& location, const folio::ExploredOp& op, uint32_t store);
  // The operation outside an execution.
  static uint64_t perform(void* word, const folio::ExploredOp& op);

  // A word that is an atomic one for others was stored to by plain code: as by a relaxed store.
  void stored_plainly(unsigned thread, void* word, uint64_t value);

  void plain(unsigned thread, uintptr_t address, size_t bytes, bool write, const void* where);
  void commit(unsigned thread, uintptr_t start, size_t bytes) {
    commits_.push_back({start, bytes, clocks_[thread].of[thread], thread});
  }
  // What is mapped there later is new.
  void forget(uintptr_t start, size_t bytes);
  // The first race of this execution, or empty.
  std::string race() const;

  // What the operation's order is, unless a mutation is asked for.
  int order_of(const folio::ExploredOp& op) const {
    return mutant_line_ == op.line && is_mutant(op) ? mutant_order_ : op.order;
  }
  uint64_t mutants() const { return mutants_; }

 private:
  static constexpr unsigned kPlain = 0, kAtomic = 2;  // + 1: writes
  struct Cell {
    uintptr_t number = 0;
    uint32_t execution = 0;
    uint8_t seen[4] = {};  // of each kind, by which threads: the others' `last` say nothing
    struct Last {
      uint32_t epoch[2];  // of either half
      uint8_t bytes;      // which of the eight
      const void* where;
    } last[4][kThreadsMost];
  };
  struct Race {
    const void* where[2];
    unsigned thread[2];
    bool write[2], atomic[2];
    uintptr_t address;
    bool uncommitted;
  };

  static constexpr int kStoreOnly = -1;
  bool is_mutant(const folio::ExploredOp& op) const;
  bool done(const Location& location, const folio::ExploredOp& op, uint32_t store) const;
  uint32_t floor(unsigned thread, const Location& location, bool strict) const;
  Cell& cell(uintptr_t number);
  void note(unsigned thread, uintptr_t address, unsigned bytes, unsigned kind, const void* where);
  void check_committed(unsigned thread, uintptr_t address, unsigned kind, const void* where);

  void note_half(Cell& c, unsigned half, unsigned thread, uintptr_t address, uint8_t mask, unsigned kind,
                 const void* where);

  uint32_t execution_ = 0;
  Clock clocks_[kThreadsMost];
  std::vector<Location> locations_;
  std::vector<Cell> cells_;
  size_t locations_used_ = 0, cells_used_ = 0;
  std::vector<uint32_t> readable_;
  struct Commit {
    uintptr_t start;
    size_t bytes;
    uint32_t epoch;
    unsigned thread;
  };
  std::vector<Commit> commits_;
  Race race_ = {};
  bool raced_ = false;
  unsigned mutant_line_ = 0;
  std::string mutant_file_, mutant_kind_;
  int mutant_order_ = 0;
  mutable uint64_t mutants_ = 0;
};

}  // namespace explorer
