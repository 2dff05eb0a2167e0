// The seam: makes every malloc of every running thread take the slow path, by writes to data alone. While it is open it
// costs nothing.
//
//   open     malloc's fast path finds the cursor of a size's bin in `front`. Slow paths read the mode anyway, as the
//            first slow call of the process starts Folio (lifecycle.h: start).
//   closed   each entry of `front` is bin 0, whose cursor is always closed: every malloc takes the slow path, reads the
//            mode, calls seam_see, and is served by the true tables (size_classes.h).
//   guarding closed for guarded objects alone (guards.h): where a process has these, it takes the place of open. Calls
//            are not counted, and each does little more than when open, but for the few that are chosen.
//
// A tool outside may switch the seam by writing into the process, which takes the permission to trace it: to close, the
// mode and then the front; to open, the front and then the mode (with guards only the mode, back to guarding). No
// thread of the program has to make any call for it. A malloc that meets a mix of old and new is served by the true
// tables, or by the true bin.
//
// A chosen object is served as a large or a huge object, whatever its size. Frees of these take the slow path anyway,
// so its free is seen, and other frees cost nothing. (But free_sized and C++'s sized delete find the bin of a size up
// to 1 KiB in `front`, too: while it is closed they make one comparison more, out of line.) A chosen object takes at
// least a page, and malloc_usable_size says so.
//
// The slow path is not told which function the program called (malloc, operator new, ...), or from where: that shows
// only in the stack that is copied for a sample, or noted for a guarded object.
//
// One object in so many bytes is chosen, at random (countdown.h).
//
// Rejected: the first slow call of any thread makes the change that a tool has asked for. Two threads that replaced
// objects at random made none within a minute.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "config/size_classes.h"
#include "insight/countdown.h"
#include "sync/relaxed.h"

namespace folio {

enum Mode : uint32_t { kNotStarted = 0, kStarting, kOpen, kClosed, kGuarding };
extern Atomic<uint32_t> seam_mode;

// The tables of kSizes that malloc's fast path reads. Plain numbers, so that they are valid before any constructor
// runs; read and written through the functions below. Another process may write them byte by byte: so only the low byte
// of an entry may ever change.
struct Front {
  uint16_t small_cursor[kSmallTableMost + 1];
  uint8_t medium_bin[kMediumMost / 64 + 1];
};
extern Front front asm("folio_front");
static_assert(kSizes.small_cursor[kSmallTableMost] < 256);
static_assert(offsetof(sizes::Tables, medium_bin) - offsetof(sizes::Tables, small_cursor) ==
              offsetof(Front, medium_bin));

// During a change a call may read an entry from before it: the true bin or bin 0. Both serve the call.
FOLIO_INLINE unsigned front_small_cursor(size_t size) {
  return reinterpret_cast<Hint<uint16_t>&>(front.small_cursor[size]).get();
}
FOLIO_INLINE unsigned front_medium_bin(size_t size) {
  return reinterpret_cast<Hint<uint8_t>&>(front.medium_bin[(size + 63) / 64]).get();
}

// What the closed seam does. A tool writes it before it closes the seam. With an interval calls are not counted: to
// count takes two atomic additions a call, and a malloc 8.5 ns in place of 2.
struct SeamSetting {
  Hint<uint64_t> interval;   // mean bytes from one chosen object to the next; 0: none is chosen, and calls are counted
  Counter<uint32_t> number;  // of the setting: each change takes the next one
  // By the system's monotonic clock. A tool that closes the seam renews this while it runs; after this time a call
  // opens the seam. 0: no call does.
  Hint<uint64_t> until_ms;
  Hint<uint32_t> carefully;  // not 0: stacks are copied without process_vm_readv, for which a sandbox might kill
};
extern SeamSetting seam_setting;

// Counts since the process started; calls and bytes only without an interval. Threads count in different shards, and
// the sum over all shards is exact while no thread counts.
inline constexpr unsigned kSeamShards = 16;
struct alignas(64) SeamCounts {
  Counter<uint64_t> calls[kBins];          // of malloc and its family, by the bin of the size; 0: more than a bin's
  Counter<uint64_t> bytes;                 // as requested
  Counter<uint64_t> chosen, chosen_bytes;  // of these
  Counter<uint64_t> freed;                 // of the chosen ones
};
extern SeamCounts seam_counts[kSeamShards];

// For the program's threads. False, and nothing changed, while another thread changes the seam, or before the process
// has started.
bool seam_close(uint64_t interval);
bool seam_open();
// Guarded objects are wanted from now on, for good.
bool seam_guard();

extern __thread Countdown seam_countdown;

// While the seam is closed: true if a malloc of `size` bytes chooses no object, and is counted off. Nearly each malloc
// passes here while objects are sampled. Inlined: by a function call a malloc took 8 ns in place of 2.5.
FOLIO_INLINE bool seam_passes(size_t size) {
  const auto bytes = static_cast<int64_t>(size);
  if (seam_countdown.change != seam_setting.number.get() || seam_countdown.bytes <= bytes || bytes < 0) return false;
  seam_countdown.bytes -= bytes;
  return true;
}

// Counts a malloc of `size` bytes, or decides whether its object is chosen: returns the interval that decided so, else
// 0.
uint64_t seam_see(size_t size);
// Records a chosen object, which is large, huge or guarded, so that its free takes the slow path: marks it, samples it
// (samples.h), counts it.
void seam_chose(void* object, size_t size, uint64_t interval);
// Records the free of a chosen object, before its address is handed out again.
void seam_freed(const void* object);
// How many allocated bytes a chosen object of `size` bytes stands for: size / (1 - exp(-size / interval)), since that
// is how likely it was to be chosen. 0 for 0.
uint64_t seam_weight(size_t size, uint64_t interval);
// A large, huge or guarded object got another size, and maybe another place, without malloc and free. The profile
// records it as a free and a malloc. `seen`: the seam is not open.
void seam_resized(void* object, size_t size, bool seen);
// The object has moved away, and its old address is nobody else's yet: if it was chosen, its free is recorded.
void seam_leaves(void* object);

void seam_after_fork();  // in the child

}  // namespace folio
