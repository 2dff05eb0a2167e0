// The large objects that a thread keeps: freed by it, parked (space/large.h), for its own next mallocs, without an
// atomic instruction. A buffer of 64 KiB or so often comes and goes in quick turns; in the CPU cache its free waits at
// a locked instruction until what the program wrote to the buffer has left the processor. (A malloc and free of 100 KB,
// 64 bytes or 4 KiB written, 0.6 to 0.8 of the time; replacing 256 objects of up to 200 KB at random 0.84.)
//
// What all threads keep is bounded (thread_budget.h). The oldest object goes to the CPU cache to make room for one that
// is freed, if the thread has allocated large ones since that happened last. Else the freed one goes: this may be a
// thread that only frees, for others that want what is still in the processor's cache. (With the oldest always,
// producers and consumers of 64 KiB, all written, took 1.13 of the time.) At most 256 or 512 KiB, or 2 MiB a thread, in
// place of 1: 0.97, 0.92, 0.75 of the time of random replacement.
//
// Who may call it: the thread, while it has a CpuCacheWork; thread_release_large and thread_sweep_large without one.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cache/large_list.h"

namespace folio {

inline constexpr uint64_t kThreadLargeMost = uint64_t{1} << 20;  // bytes

// Whether the thread may touch its list: this is not a signal handler's call that has interrupted another one.
bool thread_may_keep_large();
// Keeps a parked object, unless memory is short. False: it is the caller's still. *gone: others, to make room, went
// back to their fields.
bool thread_keep_large(LargeList& list, void* parked, unsigned granules, bool* gone);
// Takes out a parked object of n to n + n / 4 granules, n = `granules`. Null if there is none.
void* thread_find_large(LargeList& list, unsigned granules);

// Where what a thread keeps goes: to the CPU cache, or to the fields.
enum class LargeTo : uint8_t { kCpuCache, kFields };
// All that the thread keeps goes there, with its claims. Also for a thread that is gone, wherever it stopped: at most
// the object in its hands is lost. Returns how many there were.
unsigned thread_release_large(LargeList& list, LargeTo where);
// In a sweep: the same, to the CPU cache, if nothing was kept or found for two sweeps.
void thread_sweep_large(LargeList& list);

}  // namespace folio
