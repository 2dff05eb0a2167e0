// Which clusters of chunks the kernel is advised to back by huge pages: the last few runs of neighbours. A program that
// writes its objects long after it allocated them gets huge pages then. A run costs up to two mappings, of which a
// process may have 65,530, so older runs are withdrawn. Mappings first touched while one was advised and the other was
// not stay apart even so. (Two bins that grow by turns, read late: 9,665 mappings for 54 GiB.) So only kRunsMost
// begin in a process, for clusters that are new; then no more clusters become huge pages.
//
// The price: who writes few of many objects late pays for huge pages. (3,000 MiB of objects of 1000 bytes, of which one
// in each 2 MiB is written when all are allocated: 2,589 MiB, with small pages 94; jemalloc 135, mimalloc 3,150.)
//
// Runs end where regions do (space/region.h), so a heap that grows has one of 64, 64, 128 MiB and so on.
//
// Rejected: to keep advised only the cluster that was opened last. 4 million objects of 64 bytes, all allocated
// before the first was written, took 0.117 s in place of 0.049, with 14 MiB of huge pages in place of 240.
//
// Who may touch it: everybody, at any time. All of it is a hint: a thread that stops in between, or two at once, leave
// clusters advised or not, which costs mappings or page faults.
#pragma once

#include <stdint.h>

#include "base/atomic.h"
#include "sync/relaxed.h"

namespace folio {

extern Hint<unsigned> runs_begun;
inline constexpr unsigned kRunsMost = 16384;
inline bool runs_left() { return runs_begun.get() < kRunsMost; }

struct AdvisedRuns {
  static constexpr unsigned kMost = 4;
  Atomic<uint64_t> run[kMost];  // | number of the first cluster : 32 | how many : 32 |
  Hint<unsigned> next;          // which run a new one replaces

  // Adds a cluster that was just advised: to a run of which it is a neighbour, else as a new run. `is_new`: it never
  // was.
  void add(char* cluster, bool is_new);
  // Before a cluster is purged in part, or unmapped: withdraws the advice of its run, or of itself where it is in none.
  // What is huge already stays so.
  void withdraw(char* cluster);
};

}  // namespace folio
