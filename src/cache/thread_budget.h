// Thread budget: how many bytes a thread's bins may hold. Each thread has some of its own (option thread_cache), and
// claims more from a pool that all threads share (thread_cache_pool), which grows with the process.
//
// Who may touch it: the thread; once it is gone, whoever found that out.
#pragma once

#include <stdint.h>

#include "base/atomic.h"
#include "config/size_classes.h"

namespace folio {

// Bins of objects above this get a magazine only after a few slow calls.
inline constexpr uint32_t kSmallFirst = 512;

// Whether a bin's magazine is in the order of addresses, which the first watched free looks up.
enum class Ascent : uint8_t { kNo, kYes, kUnknown };

// Of 8 bytes, as that makes one of many quick to find: with 7, short-lived threads took 1 % more instructions.
struct alignas(8) BinCache {
  uint8_t capacity;
  uint8_t calls;      // how often the bin ran over or dry since it was last swept, at most 255
  bool ran_over;      // over, not dry, the last time
  uint8_t in_a_row;   // how often it did the same directly before, at most kInARow; not counted while used_up
  uint8_t turns;      // how often it did the other thing than the time before, less how often the same; 0 to kTurnsMost
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

// Notes that the bin ran over, or dry. Returns which part of a magazine moves, as a shift: 0, all of it, if it did the
// same before.
//
// If mallocs and frees alternate around a full or an empty magazine, every few calls would be slow. So the first
// overflow after a refill, and the first refill after an overflow, move only half.
//
// If it goes on by turns, a quarter moves, then an eighth. So a thread that allocates, and then frees, more than half a
// magazine at a time, but no more than a whole one, comes to hold as many as that takes, and its calls are fast from
// then on. By halves it could have half a magazine too few and too many in each turn, for ever. (Up to 100 objects of
// 64 bytes a turn: 0.72 of the time, 50 to 120 0.63, up to 60 of 1,000 bytes 0.75; where no magazine is enough 1.0.)
// After kTries calls without rest no magazine is enough, and halves are best until the next sweep: up to 100 objects of
// 1,000 bytes took 1.18 times the instructions by eighths. So they are for small capacities, of which most still grow.
FOLIO_INLINE unsigned note_turn(BinCache& b, bool over) {
  constexpr unsigned kTurnsMost = 3, kTries = 64, kCapacityLeast = kMagazineUsual / 2;
  const bool turned = b.ran_over != over;
  b.ran_over = over;
  b.turns = static_cast<uint8_t>(turned ? b.turns + (b.turns < kTurnsMost) : b.turns - (b.turns != 0));
  if (!turned) return 0;
  return b.calls > kTries || b.capacity < kCapacityLeast ? 1 : b.turns;
}

// Claims 64 KiB for a thread's large objects, of half as much as the option says, whatever the size of the process: a
// thread that sleeps keeps its claims, and bins lose nothing by them. (Of the pool, which grew with the process, ten
// sleeping threads kept all once that had shrunk: two others took seven times as long.) Returns how many bytes, or 0.
uint64_t thread_budget_claim_large();
void thread_budget_return_large(uint64_t claimed);

// Returns unused claims to the pool, as long as `keep` unused bytes of the budget remain.
void thread_budget_return(ThreadBudget& budget, int64_t keep);

// For a thread that is gone, with its magazines in use. What it had claimed returns to the pool by 64 KiB a tick
// (thread_budget_return_lost). If it returned at once, a program that loses thread after thread would lose as much with
// each; if never, the other threads would miss it.
void thread_budget_lose(ThreadBudget& budget);
void thread_budget_return_lost();

}  // namespace folio
