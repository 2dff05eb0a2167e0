// The seam: every malloc of every thread can be made to take the slow path, while they run, by data alone, and costs
// nothing until then.
//
//   mode     open      malloc's fast path finds the top of a size's bin in `front`. Each slow path reads the mode anyway
//                      (lifecycle.h: start).
//            asked     somebody wants a change. The first slow call of any thread makes it.
//            changing  it is being made; nobody waits for it.
//            closed    everywhere in `front` is bin 0, whose top is closed for good: every malloc takes the slow path,
//                      finds the mode, tells seam_see, and is served by the true tables (size_classes.h).
//
// A tool outside may ask: it writes `seam_request` and then the mode, of which one byte changes, by a system call for
// which the kernel wants the permission to trace. A malloc that nobody has closed sees nothing of all this.
//
// What seam_see chooses is served as a large or a huge object whatever its size, since frees of those take the slow
// path anyway: so it is seen when freed, and no other free pays. It takes a page at least, and `malloc_usable_size` of
// it says so.
//
// Which objects: one in so many bytes, at random (a Poisson process: an object of s bytes with probability
// 1 - exp(-s / interval), whatever was allocated before).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "config/size_classes.h"

namespace folio {

enum Mode : uint32_t { kNotStarted = 0, kStarting, kOpen, kAsked, kChanging, kClosed };
extern Atomic<uint32_t> seam_mode;

// Plain numbers, so that they are there before any constructor runs; read and written through the functions below.
struct Front {
  uint16_t small_top[kSmallTableMost + 1];
  uint8_t medium_bin[kMediumMost / 64 + 1];
};
extern Front front asm("folio_front");

// Relaxed: what is stale by a moment is the true bin or bin 0, and both serve the call.
FOLIO_INLINE unsigned front_small_top(size_t size) {
  return reinterpret_cast<Atomic<uint16_t>&>(front.small_top[size]).load(order::relaxed);
}
FOLIO_INLINE unsigned front_medium_bin(size_t size) {
  return reinterpret_cast<Atomic<uint8_t>&>(front.medium_bin[(size + 63) / 64]).load(order::relaxed);
}

// A wish: written by whoever asks, before the mode; the change makes `done` equal to `wanted`.
struct SeamRequest {
  Atomic<uint32_t> wanted, done;
  Atomic<uint64_t> close;     // 0: open
  Atomic<uint64_t> interval;  // mean bytes from one chosen object to the next; 0: none is chosen
};
extern SeamRequest seam_request;

// What was seen since the process started. Threads count apart, so a sum over all shards is exact when they rest.
inline constexpr unsigned kSeamShards = 16;
struct alignas(64) SeamCounts {
  Atomic<uint64_t> calls, bytes;         // of malloc and its family, as requested
  Atomic<uint64_t> chosen, chosen_bytes;  // of these
  Atomic<uint64_t> freed;                // of the chosen ones
};
extern SeamCounts seam_counts[kSeamShards];

// In the program, the same wish as from outside. False if another change is under way: ask again.
bool seam_ask(bool close, uint64_t interval);
// Makes the change that was asked for, if nobody is at it.
void seam_change();
// Whether calls are to be seen.
inline bool seam_closed(uint32_t now) { return now == kClosed || now == kChanging; }

// A malloc of `size` bytes is seen. Returns whether the object is to be one of the chosen.
bool seam_see(size_t size);
// It is one: also when it is freed.
void seam_chose(void* object, size_t size);
void seam_freed();

void seam_after_fork();  // in the child: what another thread was changing is changed anew

}  // namespace folio
