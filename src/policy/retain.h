// Retention: how much free memory may stay, and whether more than that is there. The stores count (space/pages.h) and
// give back what they are asked for; that they shall, and how much, is decided from here, by core/clock.cc. What it
// means to a user, and why, is in docs/memory.md.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "config/options.h"
#include "space/pages.h"

namespace folio {

// How much free resident memory there is above what is tolerated: a floor, or a quarter of what is live. Beside that,
// up to kTolerated, the larger of two:
//   of large and huge objects twice as much as is live, or what was live since the last tick and is not any more: each
//   of their mallocs may touch hundreds of pages anew, where one of a small object seldom touches any. And a quarter
//   more, but not more than was live: some of it lies in holes that are too small for what comes next. (Without the
//   quarter 16 buffers of up to 8 MiB, replaced by turns in one thread, had 41,800 page faults in place of 20,600.) And
//   a quarter of what is live of huge objects, up to 4 kTolerated: what a program has touched of these is not known, so
//   it is not for objects of bins, and not more. (Rejected: to ask the kernel for the process's peak, at most every 100
//   ms: two objects of 4 to 12 MB replaced by turns took 1.6 times as long.)
//   of all objects, beside the floor, what has become live since the program's calls last purged for the bound, and is
//   not any more: it seems to work in turns. (A program that builds and frees 50 MiB in turns takes 0.33 s in place of
//   0.45; its peak stays, as no more waits than was live. Until the first such purge, no more than the floor stays of a
//   burst.) Not while a housekeeper keeps the bound, which spares what is used in turns anyway.
size_t dirty_over_bound();
// What of it the program's own calls shall purge: 0 while a housekeeper keeps time, which does it then.
size_t dirty_excess();
int64_t live_resident();      // an estimate, without huge objects
int64_t recent_live();        // the most since the last tick, as far as anybody looked, with them
void forget_recent_live();    // at each tick
void note_purged_to_bound();  // after the program's own calls purged for the bound
// A glance, for each slow call: dirty_excess() is 0 where this says no.
inline bool dirty_over_floor() {
  const int64_t dirty = page_counts.dirty.get();
  return dirty > options.dirty_floor << 20 || options.decay == 0;
}
void note_live_until_now(size_t bytes);  // of a huge object that was just freed
inline constexpr int64_t kTolerated = int64_t{64} << 20;
void set_timekeeper(bool runs);
bool timekeeper_runs();

// After a pass of the program's calls over what may be purged. When some in a row were in vain, because the kernel
// refused, or because what is free lies too far scattered to be worth it, the next one waits until an eighth more is
// dirty, 1 to 4 MiB, or for the next tick. (Else each slow call looks in vain: beside 270 MiB that are free and locked
// a large object was replaced in 4 to 6 us in place of 0.12.)
void note_pass(bool in_vain);

}  // namespace folio
