// The decay clock: when free memory goes back to the kernel.
//
//   tick (twice per decay time)   purge what the tick before marked as aged; mark what is free now; drain CPU caches
//                                 and depot of what two ticks did not touch
//   bound                         free resident memory over dirty_excess() goes, in steps, if it is not used soon
//
// Who runs the clock: the housekeeper, a thread of Folio's own, while the program has several threads and something to
// give back; else, or if the housekeeper is held up, the slow calls of the program's threads, in steps of kStepBytes.
// Of these the call that moves the time of the next tick forward runs that tick; nobody waits.
//
// The housekeeper starts where the program starts threads (api/), never in a malloc or free, where the program may hold
// any lock. It sleeps until there is something to do, a slow call wakes it then, and it leaves soon after the program's
// other threads.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "store/purge.h"

namespace folio {

// At a tick one of the program's calls purges at most so much, and drains about so many magazines of the depot.
inline constexpr size_t kStepBytes = size_t{512} << 10;
inline constexpr unsigned kStepMagazines = 128;
// The most that one of the program's calls purges to keep the bound.
inline constexpr size_t kStepBytesMost = size_t{4} << 20;

// Called at the end of each slow malloc and free. They may wake the housekeeper.
void clock_after_slow_call();
// The same after a resize of a large object, and a malloc or free of a huge one. These are no slow calls of a thread
// cache.
void clock_after_large_call(size_t taken);  // bytes by which a malloc, or a resize, made an object larger
void clock_after_huge_free(size_t freed);   // bytes of the object
// After a malloc or free of a large object that missed the CPU cache: looks at the bound less often.
void clock_after_large_bytes(size_t taken);  // bytes of the malloc, 0 for a free
// After a malloc or free of a large object that hit the CPU cache, and a free of a watched object (store/watch.h).
void clock_after_light_call();

// Sees to it that a housekeeper runs, unless it is off. False if there can be none. Calls functions of the libc that
// take locks: not for a malloc or free.
bool clock_start_housekeeper();
// The same where the options want one also for a single thread: when the process starts, and in the child of a fork.
void clock_start_housekeeper_if_on();

// A request from outside, with the option collect_from_outside: a tool writes into `wanted` a number other than that in
// `done`; the housekeeper collects, and then copies it to `done`.
struct CollectRequest {
  Atomic<uint32_t> wanted, done;
};
extern CollectRequest collect_request;

void clock_after_fork(bool alone);  // alone: no other thread runs yet

}  // namespace folio
