// Retention: how much free memory may stay resident, and how much is above that. The stores count it (space/pages.h)
// and purge what they are asked to; core/clock.cc decides when and how much, by the functions here. docs/memory.md
// explains it to users.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "config/options.h"
#include "space/pages.h"

namespace folio {

// How many bytes of free resident memory are above the bound.
//
//   bound = max(max(dirty_floor, live / 4) + large, floor + again)
//
//   floor   the option `dirty_floor`, and up to as much again: a quarter of `regrown`
//   live    what is live; in `live / 4` without huge objects, in the lines below with them
//   large   free memory of large and huge objects, at most `some` = max(min(2 live, kTolerated), back), or
//           min(some + min(live huge objects / 4, 4 kTolerated), recent - live) if that is more
//   back    min(recent, recent + recent / 4 - live, kTolerated + in vain, kAgainMost), where `recent` is the most that
//           was live since the last tick, and `in vain` what frees of huge objects purged for the bound and others had
//           again in the same place before the next tick (half of it at each tick), at most recent - 2 live. 0 while a
//           housekeeper keeps time.
//   again   min(recent - live, kAgainFirst + regrown, kAgainMost), with or without huge objects, whichever is less.
//           `regrown` is what the program's calls purged for the bound and was live again before the next tick, without
//           huge objects; half of it at each tick. 0 while a housekeeper keeps time.
//
// Why:
//   large   A malloc of a large or huge object may touch hundreds of pages anew, a malloc of a small one seldom any.
//           How much of a live huge object is resident is not known, so no more than a quarter of it counts, and only
//           here, not for objects of bins.
//   back    What was live lately is likely to be wanted again. A quarter more, as some of it lies in holes that are too
//           small for what comes next: without that, 16 buffers of up to 8 MiB, replaced by turns in one thread, had
//           41,800 page faults in place of 20,600. More than kTolerated where that was purged in vain before: a program
//           of one thread that fills and frees 200 MB in turns takes 0.66 s for 20 turns in place of 2.8. (By what is
//           live, whatever block it has, an array that grows by realloc to 256 MiB peaked at 1.24 of the memory; one
//           that grows by copies at 1.08 without `recent - 2 live`.)
//   again   Programs work in turns, and build what is as large as what they have freed: what was purged in vain is kept
//           the next time. One of one thread that builds and frees 200 MiB of objects of 64 to 4000 bytes three times,
//           in random order, takes 0.26 s in place of 0.37 (with nothing of the first burst, and 16 MiB more a turn),
//           0.18 with kAgainMost from the first turn on. Its peak stays, since no more waits than was live; where the
//           next turn has other sizes, kAgainFirst of the first burst still waits if it is a quarter of what is live
//           then. A housekeeper spares what is used in turns anyway. Nobody purges it if the program's calls end: so
//           kAgainFirst and kAgainMost. (With 64 MiB at first 0.24 s, but a burst of 1 GiB left 7.2 % of itself in
//           place of 4.0.) Rejected: the larger of kTolerated and what was purged in vain, by which 96 MiB of 4 to 60
//           KB in turns took three times as long; an eighth of that, which sparse huge objects and large live ones
//           mislead; what was live with huge objects alone, which may be untouched, or without them alone (bursts of
//           100 MiB of growing sizes peaked at 245 MiB in place of 178).
//
//   floor   A page serves one bin. Where one bin after the other is at its largest, all of them need more pages than
//           are ever live at once, and `again` is too little: 1,500 strings that grow to 9 MB, twenty times, had 71,000
//           page faults, with this 15,000. They take 0.67 to 0.71 of the time in 1.31 of the memory (six rounds); 84
//           other command lines 0.98 and 1.02 (three).
//
// Without decay everything free is above the bound; after passes in vain nothing is, for a while (note_pass).
//
// Rejected: to ask the kernel for the process's peak, at most every 100 ms: two objects of 4 to 12 MB replaced by turns
// took 1.6 times as long.
size_t dirty_over_bound();
// The part of dirty_over_bound() that the program's own calls shall purge: 0 while a housekeeper keeps time and purges.
size_t dirty_excess();
int64_t note_live();        // what is live now, huge objects included, counts for what was live lately: an estimate
int64_t live_resident();    // an estimate, without huge objects
int64_t recent_live();      // the most that was live since the last tick, huge objects included: an estimate
void forget_recent_live();  // at each tick
void note_purged_to_bound(size_t bytes);       // after the program's own calls purged so much for the bound
void note_huge_purged_to_bound(size_t bytes);  // after a huge object's free
// One comparison, for each slow call: false only where dirty_excess() is 0.
inline bool dirty_over_floor() {
  const int64_t dirty = page_counts.dirty.get();
  return dirty > options.dirty_floor << 20 || options.decay == 0;
}
void note_live_until_now(size_t bytes);  // of a huge object that was just freed
inline constexpr int64_t kTolerated = int64_t{64} << 20, kAgainFirst = kTolerated / 2, kAgainMost = 4 * kTolerated;
void set_timekeeper(bool runs);
bool timekeeper_runs();

// After a pass of the program's calls over what may be purged. A pass is in vain where the kernel refuses, or where
// free pages lie too scattered to be worth a call. After some such passes in a row the next one waits for the next
// tick, or until an eighth more is dirty, 1 to 4 MiB. (Else each slow call searches in vain: beside 270 MiB that are
// free and locked, a large object was replaced in 4 to 6 us in place of 0.12.)
void note_pass(bool in_vain);

}  // namespace folio
