// Guarded objects: of one in so many bytes (option guard) an overflow, an underflow or a use after free faults at once,
// and is reported with the stacks of its allocation, its free and the access. As GWP-ASan does it
// (K. Serebryany et al., ICSE 2024).
//
//   cluster | guard | slot 0 | guard | slot 1 | ... | guard |      pages; a guard and what is free are inaccessible
//
// An object of up to a page gets a slot: at the page's end, or, one time in four, at its start. The rest of the page
// holds a pattern, which is looked at when the object is freed. A freed slot waits: of those that are free the one
// that was freed first is used again, and a quarter of the slots is never live. Where no slot is left, or no memory,
// the object is served as any.
//
// Who chooses: malloc's slow path, to which the closed seam sends every call (seam.h).
//
// Who may touch a slot: the thread that has claimed it (kGuardBusy); while its object lives, the program's calls on the
// object. Reports read slots, too: a report that meets a slot in reuse may mix two objects.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "insight/countdown.h"
#include "insight/frames.h"
#include "sync/relaxed.h"

namespace folio {

enum GuardPhase : uint64_t { kGuardFree = 0, kGuardBusy, kGuardLive };

// A call that allocated or freed.
struct GuardCall {
  uint64_t ms;  // of the system's monotonic clock
  uint32_t thread;
  uint32_t unused;
  Frames frames;
};

struct GuardSlot {
  Hint<char*> object;  // null: there was none yet
  Hint<size_t> size;   // as requested, and no more is usable
  GuardCall allocated, freed;
  Hint<bool> reported;  // a fault of it was reported
  bool seen;            // whoever frees it wants to know (seam.h)
  bool forbidden;       // inaccessible by a mapping of its own
  bool dirty;           // what lies there is not zero
};

inline constexpr unsigned kGuardSlotsMost = 255;  // of a cluster of the smallest pages
struct GuardPool {
  char* chunk;
  uint64_t page_bytes;
  uint32_t slots, live_most;
  bool by_advice;  // not by mappings
  // | number : 62 | phase : 2 |: when it was freed, as a number that each free raises; 0 if no object was there yet
  Atomic<uint64_t> mark[kGuardSlotsMost];
  GuardSlot slot[kGuardSlotsMost];

  char* page(unsigned i) const { return chunk + (2 * size_t{i} + 1) * page_bytes; }
};
extern Atomic<GuardPool*> guard_pool;

extern Hint<uint64_t> guard_interval;  // mean bytes from one guarded object to the next; 0: there are none
extern Counter<uint64_t> guard_frees;  // the number of the last one
extern __thread Countdown guard_countdown;

// Makes the pool, when the process starts. False, after a line on stderr, if there can be no guarded objects.
bool guards_start(uint64_t interval);

// True if an object of `size` bytes is not to be guarded, as nearly all.
FOLIO_INLINE bool guard_waits(size_t size) { return static_cast<uint64_t>(guard_countdown.bytes) > size; }
// The same; if true, also counts the object's bytes off.
FOLIO_INLINE bool guard_passes(size_t size) {
  if (!guard_waits(size)) return false;
  guard_countdown.bytes -= static_cast<int64_t>(size);
  return true;
}

// A guarded object, if the next one is to be guarded and can be; else null. Counts the call's bytes off.
void* guard_allocate(size_t size, size_t alignment, bool zeroed);

// Frees the object but for its slot, which the caller owns now, for guard_give. False after a report of misuse. *seen:
// whether the object had the mark of guard_mark_seen.
bool guard_park(void* object, const char* function, bool* seen);
void guard_give(void* parked);

// Sets or clears the mark of a live object whose free is recorded (core/seam.h). Returns whether it was set.
bool guard_mark_seen(const void* object, bool seen);

// The object, live or freed last, whose page an address of the pool is on.
struct GuardPlace {
  GuardSlot* slot;  // null: there was none yet, or the address is a guard
  unsigned number;
  uint64_t mark;
  char* base;
  size_t size;
  bool live() const { return (mark & 3) == kGuardLive; }
};
GuardPlace guard_place(const void* address);

// The live object that starts there; its slot is null after a report.
GuardPlace guard_find(const void* object, const char* function);

// The reports (guards_report.cc).
void report_guard_fault(const os::Fault& fault);
void report_guarded(const void* object, const GuardPlace& place, const char* function);
// Of a parked object: a byte beside it was written. Returns if `errors` says so.
void report_guard_overwritten(const void* at, const GuardPlace& place, const char* function);
void learn_program_path();
void guards_after_fork();  // in the child: no other thread is in the middle of a report, and it chooses on its own

// For statistics.
struct GuardStats {
  uint64_t objects, bytes;
};
GuardStats guard_stats();

}  // namespace folio
