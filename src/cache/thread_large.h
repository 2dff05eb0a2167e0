// The large objects that a thread keeps: freed by it, parked (space/large.h), for its own next mallocs, without an
// atomic instruction. A buffer of 64 KiB or so often comes and goes in quick turns; in the CPU cache its free waits at
// a locked instruction until what the program wrote to the buffer has left the processor. (A malloc and free of 100 KB,
// 64 bytes or 4 KiB written, 0.6 to 0.78 of the time; replacing 256 objects of up to 200 KB at random 0.83.)
//
// What a thread may keep is claimed from the pool of all threads (thread_budget.h), up to half of that. What does not
// fit goes to the CPU cache, the oldest object first. (At most 256 or 512 KiB, or 2 MiB, in place of 1: 0.99, 0.92,
// 0.75 of the time of the latter.)
//
// Who may call it: the thread, while it has a CpuCacheWork; thread_release_large and thread_sweep_large without one.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cache/large_list.h"

namespace folio {

inline constexpr uint64_t kThreadLargeMost = uint64_t{1} << 20;  // bytes

// Whether the thread may keep large objects now: memory is not short, and this is not a signal handler's call that has
// interrupted another one.
bool thread_keeps_large();
// Keeps a parked object, if that may be. False: it is the caller's still. *gone: others, to make room, went back to
// their fields.
bool thread_keep_large(LargeList& list, void* parked, unsigned granules, bool* gone);
// Takes out a parked object of n to n + n / 4 granules, n = `granules`. Null if there is none.
void* thread_find_large(LargeList& list, unsigned granules);

// Where what a thread keeps goes: to the CPU cache, or to the fields.
enum class LargeTo : uint8_t { kCpuCache, kFields };
// All that the thread keeps goes there, and what it has claimed returns to the pool. Also for a thread that is gone,
// wherever it stopped: at most the object in its hands is lost. Returns how many there were.
unsigned thread_release_large(LargeList& list, LargeTo where);
// In a sweep: the same, to the CPU cache, if nothing was kept or found for two sweeps.
void thread_sweep_large(LargeList& list);

}  // namespace folio
