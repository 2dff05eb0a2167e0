// What the bins of a thread may hold. Each thread has some bytes of its own (option thread_cache), and claims more from
// a pool that all share (thread_cache_pool), which grows with the process.
//
// Who may touch it: the thread, its own; whoever has found that a thread is gone, that one's.
#pragma once

#include <stdint.h>

#include "config/size_classes.h"

namespace folio {

// Objects above this get a magazine only when they have come up a few times.
inline constexpr uint32_t kSmallFirst = 512;

struct BinCache {
  uint8_t capacity;
  uint8_t calls;     // times it ran over or dry since the last sweep, at most 255
  bool ran_over;     // the last time
  uint8_t in_a_row;  // how many times before the last it did the same, at most kInARow
};

struct ThreadBudget {
  bool used_up;     // no capacity grows until the next sweep
  int64_t left;     // bytes that capacities may still grow by
  int64_t claimed;  // bytes of the budget that came from the pool
  BinCache bins[kBins];
};

void thread_budget_begin(ThreadBudget& budget);

// The bin ran over or dry: its capacity doubles, if the budget allows it. It exceeds kMagazineUsual only where the bin
// did the same kInARow times before: with mallocs and frees by turns it runs over as often as dry, and hardly ever does
// the same thrice in a row.
// (Producers and consumers of objects up to 512 bytes are 1.2 times as fast with kMagazineObjects as with
// kMagazineUsual; but Larson's server with 8 threads, if all have room for so many, takes 1.2 times the memory.)
inline constexpr uint8_t kInARow = 2;
void thread_budget_grow(ThreadBudget& budget, BinId bin, bool over);
void thread_budget_shrink(ThreadBudget& budget, BinId bin, unsigned capacity);

// Returns unused claims to the pool, as long as `keep` bytes of the budget are left.
void thread_budget_return(ThreadBudget& budget, int64_t keep);

// The thread is gone, and its magazines in use are lost. What it had claimed returns to the pool by one step (64 KiB) a
// tick. If it returned at once, a program that loses thread after thread would lose as much with each; if never, the
// other threads would miss it.
void thread_budget_lose(ThreadBudget& budget);
void thread_budget_return_lost();

}  // namespace folio
