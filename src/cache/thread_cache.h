// Thread caches: for each thread and bin, the magazine in use, and how many objects it may hold.
//
// The fast path needs only the cursors: for each bin a pointer to the top slot of the magazine in use. A closed cursor
// points at a slot that is empty (null) and full (low 10 bits 0) at once, so every call on it takes the slow path. A
// cursor is closed until it is set up; those of bin 0 and of codes that are no bin (large, huge, guarded, watched)
// always are.
//
// Capacity: a bin starts with a few objects (larger ones: none). It doubles each time the bin runs over or dry, and is
// halved by a sweep that finds the bin unused. It stays within a budget: what each thread may cache (option
// thread_cache), and what it claims from a pool that all share (thread_cache_pool), which grows with the process. A bin
// of capacity 0 is not cached: its objects come one by one from the CPU cache and go there.
//
// Rejected: a second, full magazine beside the one in use, so that mallocs and frees by turns do not reach the CPU
// cache. Half of the one in use moves instead, where they turn: Larson's server 25 % faster, random lifetimes 20 %,
// in less memory. And a thread that begins with the capacities of the last one to use its cache: 10 % fewer
// instructions for threads of 300 mallocs, but time within the noise of 15 pairs, and a lost thread loses a sixth more.
//
// Who may touch it: the thread; `next_all` and `cursors` everybody, reading. Caches of ended threads are reused, never
// unmapped.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cache/magazine.h"
#include "cache/thread_budget.h"
#include "sync/relaxed.h"

namespace folio {

struct ThreadCache;

// `owner` is the cache that these cursors belong to; null before there is one. A cache leads to its thread's cursors,
// but a thread may end unnoticed, and its TLS may then be another thread's or hold anything. So cursors that were found
// through a cache count only if their owner is that cache. A live thread sets the owner before its cache leads here,
// and keeps it until after. The owner lies behind the cursors, so that a copy reads it last.
struct ThreadCursors {
  Slot* cursor[kCodes];
  ThreadCache* owner;
};

// In TLS, each a single object so that the fast path needs one base. In phase kEnded a thread has no cache any more.
enum class Phase : uint8_t { kNew = 0, kCached, kEnded };
struct ThreadState {
  ThreadCache* cache;
  Phase phase;
};
extern __thread ThreadCursors thread_cursors asm("folio_thread_cursors");
extern __thread ThreadState thread_state;

extern const Slot closed_slots[kMagazineSlots];
inline bool closed(const Slot* cursor) { return cursor == closed_slots; }
constexpr Slot* closed_cursor() { return const_cast<Slot*>(closed_slots); }

// The fast path's view of one cursor, by its offset.
struct CompiledCursor {
  Slot** cursor;
  FOLIO_INLINE explicit CompiledCursor(unsigned offset)
      : cursor(reinterpret_cast<Slot**>(reinterpret_cast<char*>(thread_cursors.cursor) + offset)) {}
  FOLIO_INLINE Slot* load() const { return *cursor; }
  FOLIO_INLINE void step_up() const { ++*cursor; }
  FOLIO_INLINE void step_down() const {
    asm volatile("" : : : "memory");  // after the object was stored: a fork may come in between
    --*cursor;
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
  Atomic<ThreadCache*> link;  // while it waits for a thread
  ThreadCache* next_all;      // every cache ever made
  Atomic<ThreadCursors*>
      cursors;                 // of its thread, which may be gone; null while it has none; odd: thread_caches_find_gone
  Counter<uint32_t> activity;  // slow calls; written by the thread
  Atomic<uint32_t> thread;     // its thread's number (os::thread_id): for the child of a fork
  uint32_t calls_to_sweep;
  Magazine* empties;  // linked through next
  unsigned empty_count;
  ThreadBudget budget;

  Atomic<ThreadCache*>& stack_link() { return link; }
};

// The slow half of malloc: an object of the bin whose magazine is empty or closed. Null if there is no memory. *zero
// says that its pages are known to read as zero.
void* thread_cache_refill(ThreadCache* cache, BinId bin, bool* zero);

// Whether the calling thread's magazine of the bin holds the object.
bool thread_cache_holds(BinId bin, const void* object);

// The slow half of free: keeps an object of the bin whose magazine is full or closed.
void thread_cache_overflow(ThreadCache* cache, BinId bin, void* object, const char* function);

// Before a free that goes straight to its folio: a thread whose first call for a bin of small objects is a free gets
// other objects into its cache first, against passive false sharing.
void thread_cache_before_free(ThreadCache* cache, BinId bin);

// Looks through all that the calling thread caches; what is wrong is reported as of `function` and dropped.
void thread_cache_validate(const char* function);

// Gives all that the calling thread caches back to the folios. Or, as the thread ends, hands its magazines on to the
// CPU cache, and returns its budget.
void thread_cache_drain(ThreadCache* cache, const char* function);
void thread_cache_hand_on(ThreadCache& c);

// A cache that is to serve a thread.
void thread_cache_begin(ThreadCache& c);

// Of a cache whose thread is gone: drops its empty magazines, whose list may be half changed, and returns its budget.
// `lost`: its magazines in use are lost, so their share of the budget returns slowly (thread_budget_lose).
void thread_cache_forget(ThreadCache& cache, bool lost);

}  // namespace folio
