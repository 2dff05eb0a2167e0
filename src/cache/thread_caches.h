// All thread caches: those that serve threads and those that wait for one; and what other threads do with them, in a
// fork's child, for statistics, and in search of threads that ended unnoticed.
//
// Cursors lie in their thread's TLS, which at any moment may be unmapped or become something else; ThreadCursors in
// thread_cache.h says how a reader recognises that.
#pragma once

#include "cache/thread_cache.h"

namespace folio {

extern Atomic<ThreadCache*> all_thread_caches;

// The calling thread's cache, made at its first use. Null if the thread is to have none, as it is ending or there is no
// memory: the folios serve it then.
FOLIO_NOINLINE ThreadCache* thread_cache_make();
FOLIO_INLINE ThreadCache* thread_cache() {
  return __builtin_expect(thread_state.phase != Phase::kNew, true) ? thread_state.cache : thread_cache_make();
}

// Called at the thread's end with its cache.
void thread_cache_end(void* value);

// Get: a cache for a new thread, a used one if possible; null if there is no memory. Put: back, after the thread's end.
ThreadCache* thread_caches_get();
void thread_caches_put(ThreadCache& cache);

// In a fork's child: flushes what the vanished threads had cached. `alone`: no other thread runs. (A handler of the
// program's may have started one.)
void thread_caches_after_fork(bool alone);
// In a fork's child, before cpu_caches_after_fork gives all parked large objects back: no thread keeps any.
void thread_caches_drop_large();
// In a fork's child: whether any other thread that has a cache runs. A system call for each cache.
bool thread_caches_others_run();

// Checks the next `checks` caches for threads that ended unnoticed: a pthread key's destructor reports a thread's end,
// except after the raw system call, and where the first malloc comes in the last round of destructors. Caches of such
// threads wait for others from now on; the magazines in use are lost. Returns how many there were.
unsigned thread_caches_find_gone(unsigned checks);

// How many threads have a cache.
unsigned thread_count();
// The first of all caches ever made, linked through `next_all`.
ThreadCache* thread_caches_first();

// Adds, for each bin, the objects in all threads' magazines in use: estimates for any but the calling thread. Reads a
// few threads' cursors per system call; those that cannot be read count as empty.
void thread_caches_objects(uint64_t (&objects)[kBins]);
// The objects in one thread's magazine in use of one bin. Only tests link it.
uint64_t thread_cache_objects(const ThreadCache* cache, BinId bin);

}  // namespace folio
