// Thread budget: how many bytes a thread's bins may hold. Each thread has some of its own (option thread_cache), and
// claims more from a pool that all threads share (thread_cache_pool), which grows with the process.
//
// Who may touch it: the thread; once it is gone, whoever found that out.
#pragma once

#include <stdint.h>

#include "config/size_classes.h"

namespace folio {

// Bins of objects above this get a magazine only after a few slow calls.
inline constexpr uint32_t kSmallFirst = 512;

// Whether a bin's magazine is in the order of addresses, which the first watched free looks up.
enum class Ascent : uint8_t { kNo, kYes, kUnknown };

struct BinCache {
  uint8_t capacity;
  uint8_t calls;      // how often the bin ran over or dry since it was last swept, at most 255
  bool ran_over;      // over, not dry, the last time
  uint8_t in_a_row;   // how often it did the same directly before, at most kInARow; not counted while used_up
  Ascent ascent;      // while the bin is watched
  uint8_t uncounted;  // watched frees that the bin's count lacks
};

struct ThreadBudget {
  bool used_up;     // no capacity grows until the next sweep
  int64_t left;     // bytes that capacities may still grow by
  int64_t claimed;  // bytes of the budget that came from the pool
  BinCache bins[kBins];
};

void thread_budget_begin(ThreadBudget& budget);

// The bin ran over or dry: doubles its capacity, if the budget allows. Beyond kMagazineUsual only if the bin did the
// same kInARow times before: with mallocs and frees by turns it runs over as often as dry, and hardly ever does the
// same thrice in a row. (Producers and consumers of objects up to 512 bytes are 1.2 times as fast with kMagazineObjects
// as with kMagazineUsual; but Larson's server with 8 threads takes 1.2 times the memory if all have room for so many.)
inline constexpr uint8_t kInARow = 2;
void thread_budget_grow(ThreadBudget& budget, BinId bin, bool over);
void thread_budget_shrink(ThreadBudget& budget, BinId bin, unsigned capacity);

// Returns unused claims to the pool, as long as `keep` unused bytes of the budget remain.
void thread_budget_return(ThreadBudget& budget, int64_t keep);

// For a thread that is gone, with its magazines in use. What it had claimed returns to the pool by 64 KiB a tick
// (thread_budget_return_lost). If it returned at once, a program that loses thread after thread would lose as much with
// each; if never, the other threads would miss it.
void thread_budget_lose(ThreadBudget& budget);
void thread_budget_return_lost();

}  // namespace folio
