// The decay clock: when free memory goes back to the kernel.
//
//   tick (twice per decay time)   purge what the tick before marked as aged; mark what is free now; drain CPU caches
//                                 and depot of what two ticks did not touch
//   bound                         free resident memory over dirty_excess() goes, in steps, if it is not used soon
//
// Who runs it: the housekeeper, a thread that starts once there are several threads and something to give back, and
// stays; else, and if the housekeeper is held up, the slow calls of the program's threads, in steps of kStepBytes.
// Whoever moves the time of the next tick forward runs that tick; nobody waits.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"

namespace folio {

inline constexpr size_t kStepBytes = size_t{512} << 10;
inline constexpr size_t kStepBytesMost = size_t{4} << 20;

// Called at the end of each slow malloc and free. Only a malloc may start the housekeeper: a free may be called by the
// C library while it holds the lock that starting a thread takes.
enum class SlowCall { kMalloc, kFree };
void clock_after_slow_call(SlowCall call);
// The same after a call that no thread cache counts: of a huge object, or a large one that the CPU cache does not have.
void clock_after_large_call(SlowCall call);
// And after one that it has.
void clock_after_cached_large_call(SlowCall call);

// Everything that can go now. Returns bytes given back.
size_t clock_collect(const char* function);

// A wish from outside, with the option collect_from_outside: a tool writes into `wanted` a number that `done` does not
// hold, and the housekeeper collects and then makes them equal.
struct CollectRequest {
  Atomic<uint32_t> wanted, done;
};
extern CollectRequest collect_request;

void clock_after_fork();

}  // namespace folio
