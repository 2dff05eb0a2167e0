// CPU caches: for each CPU, a list of magazines per bin, about as many objects as fit into a level-2 cache. A thread
// takes what another thread on the same CPU has freed while that is still in the CPU's hardware caches.
//
// Guarded by a section that is tried, never waited for (sync/try_section.h). It is busy only if a thread was preempted
// inside it, or has migrated: then the caller goes on to the depot, or straight to the folios or fields.
//
// All CPU caches and the depot behind them are one instance, empty when zero-filled. The process has one
// (process_caches); tests have others. Objects that a cache gives back find their store by their descriptors.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cache/depot.h"
#include "cache/large_list.h"
#include "cache/magazine.h"
#include "sync/try_section.h"

namespace folio {

inline constexpr unsigned kCpusMost = 1024;  // further CPUs share caches

// Changed inside the section only. The atomic fields are also read outside, for prefetches and statistics (relaxed).
struct CpuList {
  Atomic<Magazine*> first;
  uint16_t magazines;
  uint16_t idle;             // trims since it was last used
  Atomic<uint32_t> objects;  // in its magazines

  // Relaxed throughout: the section orders them.
  Magazine* top() const { return first.load(order::relaxed); }
  void set_top(Magazine* magazine) { first.store(magazine, order::relaxed); }
  void add_objects(uint32_t n) { objects.store(objects.load(order::relaxed) + n, order::relaxed); }
  void clear() {
    set_top(nullptr);
    magazines = idle = 0;
    objects.store(0, order::relaxed);  // relaxed: the section orders it
  }
};

struct alignas(64) CpuCache {
  TrySection section;
  Atomic<uint64_t> busy;       // tries that found the section held; written outside it
  alignas(64) uint64_t bytes;  // of objects in all lists; this and what follows: inside the section only
  int64_t to_depot[2];         // by depot_small: bytes pushed to the depot less those popped, not flushed yet
  CpuList lists[kBins];
  LargeList large;  // has a budget of its own
};

struct CpuCaches {
  Atomic<CpuCache*> of_cpu[kCpusMost];  // null until first used
  Hint<bool> sparing;                   // cpu_caches_spare
  Depot depot;
};
extern CpuCaches process_caches;

// As long as one exists, the thread is at work in a CPU cache, or has a parked object in its hands. A fork in between,
// by a signal's handler, leaves both to it in the child.
extern __thread unsigned cpu_cache_work;
class CpuCacheWork {
 public:
  FOLIO_INLINE CpuCacheWork() {
    ++cpu_cache_work;
    asm volatile("" : : : "memory");
  }
  FOLIO_INLINE ~CpuCacheWork() {
    asm volatile("" : : : "memory");
    --cpu_cache_work;
  }
  CpuCacheWork(const CpuCacheWork&) = delete;
  void operator=(const CpuCacheWork&) = delete;
};

// From this many objects on a magazine moves whole. Fewer objects are copied into a waiting magazine or out of one, so
// that caches and depot hold full magazines, and a thread gets no more objects than it has room for.
inline constexpr unsigned kWholeLeast = kMagazineUsual / 2 + 1;

// Flushes a waiting, non-empty magazine to the CPU cache, which may pass a bundle on to the depot. If there is no CPU
// cache, or it is busy, the magazine goes to the depot, or to the folios if it is less than half full. Misuse found in
// a drain is reported in the name of `function`. Returns the magazine if it is empty afterwards, else null.
Magazine* cpu_cache_put(CpuCaches& caches, BinId bin, Magazine* magazine, const char* function);

// Returns a waiting magazine of objects from the CPU cache or the depot; null if they have none. It is a whole one if
// that holds at most `want` objects, or at most 2 * `want` if `want` >= kWholeLeast; else `into`, which was empty, with
// `want` objects. `into` stays the caller's if it is not returned, and may be null if `want` fills a magazine.
Magazine* cpu_cache_get(CpuCaches& caches, BinId bin, unsigned want, Magazine* into);

// Pops one object, for threads that do not cache the bin. Null if the CPU cache has none, or is busy. *emptied: the
// magazine that this call has emptied, now the caller's, or null. (Rejected: magazines of one object by cpu_cache_put
// and cpu_cache_get, with a search for double frees: Vyukov's chain had 0.87 of the speed, 1.12 of the processor time.)
void* cpu_cache_pop_one(CpuCaches& caches, BinId bin, Magazine** emptied);

// Pushes one object into the bin's first magazine. kNo: there is none, or it is full, or the cache is busy or over its
// budget. kTwice: that magazine holds the object already.
enum class Pushed { kNo, kYes, kTwice };
Pushed cpu_cache_push_one(CpuCaches& caches, BinId bin, void* object);

// Whether one of the bin's first few magazines in one of the first few caches holds the object; skips busy caches.
bool cpu_caches_hold(CpuCaches& caches, BinId bin, const void* object);

// Takes out a parked large object of n to n + n / 4 granules, n = `granules`. Null if the cache has none, or is busy.
void* cpu_cache_get_large(CpuCaches& caches, unsigned granules);
// Keeps a parked large object. False if that or others, to make room, went back to their fields. `near`: the thread's,
// for an object that no cache keeps.
bool cpu_cache_put_large(CpuCaches& caches, void* parked, unsigned granules, LargeNear* near = nullptr);

// Drains the lists that nobody has used since the last call, or with `all` every list; without `large` no large
// objects. Returns how many magazines and large objects were drained.
unsigned cpu_caches_trim(CpuCaches& caches, bool all, bool large = true);

// A step of cpu_caches_trim(caches, true, false), for the program's calls: drains lists from number `from` on (CPU
// times kBins plus bin), up to the one that makes it `most` magazines. Returns the number to go on with, kCpuListsEnd
// at the end. Adds to *drained.
inline constexpr unsigned kCpuListsEnd = kCpusMost * kBins;
unsigned cpu_caches_drain_step(CpuCaches& caches, unsigned from, unsigned most, unsigned* drained);

// An upper estimate of the bytes of pages that cached objects of bins keep resident.
uint64_t cpu_caches_pin(const CpuCaches& caches);
// Shrinks each cache's budget to 1/16, or sets it back.
void cpu_caches_spare(CpuCaches& caches, bool spare);

// In a fork's child. If `alone`, no other thread runs, nor is this one at work here: empties caches whose section was
// held, whose objects are lost, and gives all parked large objects of `fields` back. Else does nothing, as a thread may
// be inside a section or have a parked object; a section that was held stays busy.
void cpu_caches_after_fork(CpuCaches& caches, Fields& fields, bool alone);

// For statistics, read without a section: estimates under load.
uint64_t cpu_caches_objects(const CpuCaches& caches, BinId bin);
uint64_t cpu_caches_busy(const CpuCaches& caches);

}  // namespace folio
