// Thread cache: for each thread and bin, the magazine in use and how many objects it may hold.
//
// The fast path needs only the cursors: for each bin a pointer to the top slot of the magazine in use. A closed cursor
// points to a slot that is empty (null) and full (low 10 bits 0) at once, so every call on it takes the slow path. A
// cursor is closed while the bin has no magazine; those of bin 0 and of codes that are no bin (large, huge, guarded,
// watched) always are.
//
// Capacity: a bin starts with a few objects (larger ones: none). The capacity doubles each time the bin runs over or
// dry, within the thread's budget (thread_budget.h); a sweep that finds the bin unused halves it. A bin of capacity 0
// is not cached: its objects come one by one from the CPU cache and go there.
//
// Rejected:
//   - a second, full magazine beside the one in use, so that mallocs and frees by turns do not reach the CPU cache.
//     Instead half of the one in use moves when they turn: Larson's server 25 % faster, random lifetimes 20 %, in less
//     memory;
//   - a thread that begins with the capacities of the last one to use its cache: 10 % fewer instructions for threads of
//     300 mallocs, but time within the noise of 15 pairs, and a lost thread loses a sixth more.
//
// Who may touch it: the thread. Everybody reads `next_all`, `cursors` and `thread`, and the search for gone threads
// changes `cursors` (thread_caches_find_gone). Caches of ended threads are reused, never unmapped.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cache/large_list.h"
#include "cache/magazine.h"
#include "cache/thread_budget.h"
#include "sync/relaxed.h"

namespace folio {

struct ThreadCache;

// `owner` is the cache that these cursors belong to; null before there is one. A cache leads to its thread's cursors,
// but a thread may end unnoticed, and its TLS then be another thread's or hold anything. So cursors found through a
// cache count only if their owner is that cache: a live thread has the owner set as long as its cache leads here. The
// owner lies behind the cursors, so that a copy reads it last.
struct ThreadCursors {
  Slot* cursor[kCodes];
  ThreadCache* owner;
};

// In phase kEnded a thread has no cache any more.
enum class Phase : uint8_t { kNew = 0, kCached, kEnded };
struct ThreadState {
  ThreadCache* cache;
  Phase phase;
};
// One object, so that the fast path needs one base.
extern __thread ThreadCursors thread_cursors asm("folio_thread_cursors");
extern __thread ThreadState thread_state;

extern const Slot closed_slots[kMagazineSlots];
inline bool closed(const Slot* cursor) { return cursor == closed_slots; }
constexpr Slot* closed_cursor() { return const_cast<Slot*>(closed_slots); }

// The fast path's access to one cursor, by its offset.
struct CompiledCursor {
  Slot** cursor;
  FOLIO_INLINE explicit CompiledCursor(unsigned offset)
      : cursor(reinterpret_cast<Slot**>(reinterpret_cast<char*>(thread_cursors.cursor) + offset)) {}
  FOLIO_INLINE Slot* load() const { return *cursor; }
  FOLIO_INLINE void set(Slot* to) const {
    asm volatile("" : : : "memory");  // after the object was stored: a fork may come in between
    *cursor = to;
  }
};
template <bool has>
struct ChooseCursor {
  using Type = arch::ThreadCursor;
};
template <>
struct ChooseCursor<false> {
  using Type = CompiledCursor;
};
using Cursor = ChooseCursor<arch::ThreadCursor::kHas>::Type;

struct ThreadCache {
  Atomic<ThreadCache*> link;  // in the stack of idle caches
  ThreadCache* next_all;      // of every cache ever made
  Atomic<ThreadCursors*>
      cursors;                 // of its thread, which may be gone; null while it has none; odd: thread_caches_find_gone
  Counter<uint32_t> activity;  // slow calls; written by the thread
  Atomic<uint32_t> thread;     // its thread's number (os::thread_id): for the child of a fork
  uint32_t calls_to_sweep;
  Magazine* empties;  // linked through next
  unsigned empty_count;
  ThreadBudget budget;
  LargeList large;
  LargeNear near;  // of objects that no cache keeps

  Atomic<ThreadCache*>& stack_link() { return link; }
};

// The slow half of malloc: an object of a bin whose magazine is empty or whose cursor is closed. Null if there is no
// memory.
void* thread_cache_refill(ThreadCache* cache, BinId bin);

// Whether the calling thread's magazine of the bin holds the object, whose chunk is watched (store/watch.h).
bool thread_cache_holds(ThreadCache& cache, BinId bin, const void* object);
// For how many watched frees of the bin the one that has just come is to be counted: 0, or those since the last time.
unsigned thread_cache_count_watched(ThreadCache& cache, BinId bin);

// The slow half of free: keeps an object of a bin whose magazine is full or whose cursor is closed.
void thread_cache_overflow(ThreadCache* cache, BinId bin, void* object, const char* function);

// Called before a free that goes straight to its folio. If that is the thread's first call for a bin of small objects,
// the thread gets other objects into its cache first, against passive false sharing.
void thread_cache_before_free(ThreadCache* cache, BinId bin);

// Validates all that the calling thread caches; reports misuse in the name of `function`, and drops the address.
void thread_cache_validate(const char* function);

// Drains all that the calling thread caches into the folios.
void thread_cache_drain(ThreadCache* cache, const char* function);
// Flushes the calling thread's magazines to the CPU cache, of watched bins to the folios, and returns its budget, as
// the thread ends.
void thread_cache_hand_on(ThreadCache& c);

// Sets up a cache that is to serve a thread.
void thread_cache_begin(ThreadCache& c);

// Resets a cache whose thread is gone: drops the empty magazines, whose list may be half changed, and returns the
// budget; slowly if `lost`, that is, if its magazines in use are lost (thread_budget_lose).
void thread_cache_forget(ThreadCache& cache, bool lost);

}  // namespace folio
