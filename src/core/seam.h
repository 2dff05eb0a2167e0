// The seam: every malloc of every thread can be made to take the slow path, while they run, by data alone, and costs
// nothing until then.
//
//   open     malloc's fast path finds the cursor of a size's bin in `front`. Each slow path reads the mode anyway
//            (lifecycle.h: start).
//   closed   everywhere in `front` is bin 0, whose cursor is closed for good: every malloc takes the slow path, finds
//            the mode, calls seam_see, and is served by the true tables (size_classes.h).
//   guarding closed, for guarded objects alone (guards.h): what the process is in place of open where it has these.
//            Calls are not counted, and but for the few that are chosen each does little more than when open.
//
// A tool outside may switch it, by writing into the process (the kernel wants the permission to trace it): to close,
// the mode and then the front; to open, the front and then the mode (with guards only the mode, back to guarding). No
// thread takes part, so none need make any call. Whoever meets a mix of old and new is served by the true tables, or by
// the true bin.
//
// What seam_see chooses is served as a large or a huge object whatever its size, since frees of those take the slow
// path anyway: so it is seen when freed, and no other free pays. (But free_sized and C++'s sized delete find the bin of
// a size up to 1 KiB in `front`, too: while it is closed they make one comparison more, out of line.) A chosen object
// takes a page at least, and `malloc_usable_size` says so.
//
// Which objects: one in so many bytes, at random (countdown.h).
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

// As in kSizes. Plain numbers, so that they are there before any constructor runs; read and written through the
// functions below. Another process writes them byte by byte, maybe: so only the low byte of an entry may ever change.
struct Front {
  uint16_t small_cursor[kSmallTableMost + 1];
  uint8_t medium_bin[kMediumMost / 64 + 1];
};
extern Front front asm("folio_front");
static_assert(kSizes.small_cursor[kSmallTableMost] < 256);
static_assert(offsetof(sizes::Tables, medium_bin) - offsetof(sizes::Tables, small_cursor) ==
              offsetof(Front, medium_bin));

// What is stale by a moment is the true bin or bin 0, and both serve the call.
FOLIO_INLINE unsigned front_small_cursor(size_t size) {
  return reinterpret_cast<Hint<uint16_t>&>(front.small_cursor[size]).get();
}
FOLIO_INLINE unsigned front_medium_bin(size_t size) {
  return reinterpret_cast<Hint<uint8_t>&>(front.medium_bin[(size + 63) / 64]).get();
}

// What the closed seam does. A tool writes it before it closes the seam. With an interval calls are not counted, which
// takes two atomic additions each: 8.5 ns a malloc in place of 2.
struct SeamSetting {
  Hint<uint64_t> interval;   // mean bytes from one chosen object to the next; 0: none is chosen, and calls are counted
  Counter<uint32_t> number;  // another one each time
  // By the system's monotonic clock: later on a call that is seen opens the seam, since the tool that closed it is gone
  // (it sets this anew while it is there). 0: nobody does.
  Hint<uint64_t> until_ms;
  Hint<uint32_t> carefully;  // not 0: stacks are copied without process_vm_readv, for which a sandbox might kill
};
extern SeamSetting seam_setting;

// What was seen since the process started, calls and bytes only without an interval. Threads count apart, so a sum over
// all shards is exact when they rest.
inline constexpr unsigned kSeamShards = 16;
struct alignas(64) SeamCounts {
  Counter<uint64_t> calls[kBins];          // of malloc and its family, by the bin of the size; 0: more than a bin's
  Counter<uint64_t> bytes;                 // as requested
  Counter<uint64_t> chosen, chosen_bytes;  // of these
  Counter<uint64_t> freed;                 // of the chosen ones
};
extern SeamCounts seam_counts[kSeamShards];

// In the program. False, and nothing changed, while another thread is at it, or before the process has started.
bool seam_close(uint64_t interval);
bool seam_open();
// Guarded objects are wanted from now on, for good.
bool seam_guard();

extern __thread Countdown seam_countdown;

// The seam is closed. Whether a malloc of `size` bytes is seen already, and not chosen: nearly each is while objects
// are chosen. Inlined: with a call it took 8 ns a malloc in place of 2.5.
FOLIO_INLINE bool seam_passes(size_t size) {
  const auto bytes = static_cast<int64_t>(size);
  if (seam_countdown.change != seam_setting.number.get() || seam_countdown.bytes <= bytes || bytes < 0) return false;
  seam_countdown.bytes -= bytes;
  return true;
}

// A malloc of `size` bytes is seen. Returns the interval by which its object is to be one of the chosen; 0: it is not.
uint64_t seam_see(size_t size);
// It is one, whose free is seen: large, huge or guarded. A sample is made of it (samples.h).
void seam_chose(void* object, size_t size, uint64_t interval);
// A chosen object is freed, and nobody has its address again yet.
void seam_freed(const void* object);
// How many allocated bytes a chosen object of `size` bytes stands for: size / (1 - exp(-size / interval)), since that
// is how likely it was to be chosen. 0 for 0.
uint64_t seam_weight(size_t size, uint64_t interval);
// A large or a huge object was given another size, and maybe another place, without malloc and free. For the profile it
// was freed and allocated, as if it had been copied. `seen`: calls are.
void seam_resized(void* object, size_t size, bool seen);
// It has moved, and nobody else can have its address yet: no chosen one any more.
void seam_leaves(void* object);

void seam_after_fork();  // in the child: nobody is at it

}  // namespace folio
