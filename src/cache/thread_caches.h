// All thread caches: those that serve threads, those that wait for one, and how other threads read them: the child of a
// fork, statistics, and the search for threads that ended unnoticed.
//
// Cursors lie in their thread's TLS, which at any moment may be unmapped or become something else; ThreadCursors in
// thread_cache.h says how that is recognised.
#pragma once

#include "cache/thread_cache.h"

namespace folio {

extern Atomic<ThreadCache*> all_thread_caches;

// The calling thread's cache, made at its first use. Null: the thread is not to have one (it has ended, or there is no
// memory): serve it from the folios.
FOLIO_NOINLINE ThreadCache* thread_cache_make();
FOLIO_INLINE ThreadCache* thread_cache() {
  return __builtin_expect(thread_state.phase != Phase::kNew, true) ? thread_state.cache : thread_cache_make();
}

// At the thread's end.
void thread_cache_end(void* value);

// A cache for a thread that comes, a used one if there is one; null if there is no memory. And back, when it has ended.
ThreadCache* thread_caches_get();
void thread_caches_put(ThreadCache& cache);

// In the child of a fork: hands on what the threads that are gone had cached. `alone`: no other thread runs yet. One
// may where a handler of the program's has started it.
void thread_caches_after_fork(bool alone);
// There: whether any other thread that has a cache runs. A system call for each.
bool thread_caches_others_run();

// Checks some of the caches, in turn, for threads that ended unnoticed: a pthread key's destructor reports a thread's
// end, but not after the raw system call, nor where the first malloc comes in the last round of destructors. Their
// caches serve other threads from now on; what was in them is lost. Returns how many there were.
unsigned thread_caches_find_gone(unsigned checks);

// Threads that have a cache; all caches ever made, for those who look from outside.
unsigned thread_count();
ThreadCache* thread_caches_first();

// Adds, for each bin, the objects in the magazines in use of all threads: estimates for any but the calling thread. A
// system call for some of the others each; where os::peek is refused these count as having none.
void thread_caches_objects(uint64_t (&objects)[kBins]);
// The same of one thread and bin. Only tests link it.
uint64_t thread_cache_objects(const ThreadCache* cache, BinId bin);

}  // namespace folio
