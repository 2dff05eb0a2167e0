// Page accounting: two estimates that decide when to purge, and two statistics. Written wherever an object's pages
// become resident, free or purged; that is when a whole folio, a large or a huge object changes hands, never for a
// small object.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "config/options.h"

namespace folio {

// Relaxed everywhere: counters that order nothing. dirty is part of resident; both are signed sums that may be off by
// what is in flight.
struct alignas(64) PageCounts {
  Atomic<int64_t> resident{0};      // bytes of objects' pages that may be resident
  Atomic<int64_t> dirty{0};         // of these, bytes that are free
  Atomic<int64_t> dirty_large{0};   // of these, of large and huge objects
  Atomic<uint64_t> purged{0};       // bytes given back since start
  Atomic<uint64_t> purge_calls{0};  // system calls for it
};

extern PageCounts page_counts;

// relaxed: see above
inline void count_resident(int64_t bytes) { page_counts.resident.fetch_add(bytes, order::relaxed); }
// relaxed: see above
inline void count_dirty(int64_t bytes, bool large = false) {
  page_counts.dirty.fetch_add(bytes, order::relaxed);                   // relaxed: see above
  if (large) page_counts.dirty_large.fetch_add(bytes, order::relaxed);  // relaxed: see above
}

// How much free resident memory there is above what is tolerated: a floor, or a quarter of what is live. Beside that,
// up to kTolerated, the larger of two:
//   of large and huge objects twice as much as is live, or what was live since the last tick and is not any more: each
//   of their mallocs may touch hundreds of pages anew, where one of a small object seldom touches any;
//   of all objects, beside the floor, what has become live since the program's calls last purged for the bound, and is
//   not any more: it seems to work in turns. (A program that builds and frees 50 MiB in turns takes 0.33 s in place of
//   0.45; its peak stays, as no more waits than was live. Until the first such purge, no more than the floor stays of a
//   burst.) Not while a housekeeper keeps the bound, which spares what is used in turns anyway.
size_t dirty_over_bound();
// What of it the program's own calls shall purge: 0 while a housekeeper keeps time, which does it then.
size_t dirty_excess();
int64_t live_resident();      // an estimate
int64_t recent_live();        // the most since the last tick, as far as anybody looked
void forget_recent_live();    // at each tick
void note_purged_to_bound();  // after the program's own calls purged for the bound
// A glance, for each slow call: dirty_excess() is 0 where this says no.
inline bool dirty_over_floor() {
  const int64_t dirty = page_counts.dirty.load(order::relaxed);  // relaxed: see above
  return dirty > options.dirty_floor << 20 || options.decay == 0;
}
// What live huge objects have resident, as far as known: what a program has touched of them shows in no count.
void set_live_huge(size_t bytes);
void cap_live_huge(size_t bytes);  // there are no more than that
inline constexpr int64_t kTolerated = int64_t{64} << 20;
void set_timekeeper(bool runs);
bool timekeeper_runs();

// A purge takes no more than this by one call, so that none holds the kernel's lock on the process's memory for long.
inline constexpr size_t kPurgeRunBytes = size_t{256} << 10;

// Makes a range read as zero whose pages may be resident. To clear them costs a program that uses all of them a
// twentieth of what it costs to give them back and touch them anew, while they fit into a cache, a third to a seventh
// above; where it uses every sixteenth page the two cost the same (64 KiB to 64 MiB, 4 KiB pages, Linux 6.18). So only
// what is so large that a sparse array's pages weigh more goes back to the kernel. Rejected: to ask the kernel which
// are there (mincore), which sandboxes answer by killing.
inline constexpr size_t kZeroByPurge = size_t{16} << 20;
void zero_pages(char* start, size_t bytes);

// Purges and counts. False if the kernel refuses, as of pages that the program has locked.
bool purge_pages(void* address, size_t bytes);
uint64_t purge_refusals();  // how often it has
// After a pass over what may be purged. When some in a row were in vain, because the kernel refused, what is dirty then
// does not count as over the bound until the next tick.
void note_pass(bool in_vain);

}  // namespace folio
