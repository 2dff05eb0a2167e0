// CPU caches: for each CPU, lists of magazines by bin, about as many objects as fit into a level-2 cache. A thread
// takes what another thread on the same CPU has freed, while it still is in that CPU's hardware caches.
//
// Guarded by a section that is tried, never waited for (sync/try_section.h). It is busy only where another thread was
// preempted inside, or has moved to another CPU there: the caller then goes on to the depot, or straight to the folios
// or fields.
//
// All of them and the depot behind them are one struct, which functions get. Zero-filled it is valid and empty. The
// process has one (process_caches); tests have others, and heaps to come may. What a cache gives back finds its own
// way, by the object's descriptor.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cache/depot.h"
#include "cache/large_list.h"
#include "cache/magazine.h"
#include "sync/try_section.h"

namespace folio {

inline constexpr unsigned kCpusMost = 1024;  // further ones share

// Changed inside the section only; the atomic ones are also read outside, for a prefetch and for statistics (relaxed).
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
    objects.store(0, order::relaxed);  // relaxed: as above
  }
};

struct alignas(64) CpuCache {
  TrySection section;
  Atomic<uint64_t> busy;       // tries that found the section held: written outside it
  alignas(64) uint64_t bytes;  // of objects in all lists; this and what follows: inside the section only
  int64_t to_depot[2];         // by depot_small: bytes that went there less those that came, not flushed yet
  CpuList lists[kBins];
  LargeList large;  // a budget of its own
};

struct CpuCaches {
  Atomic<CpuCache*> of_cpu[kCpusMost];  // null until it is used
  Counter<unsigned> made;               // caches so far
  Hint<bool> sparing;                   // cpu_caches_spare
  Depot depot;
};
extern CpuCaches process_caches;

// From this many objects on a magazine is passed on whole; fewer are copied into or out of one that waits, so that
// caches and depot hold full magazines and a thread with little room gets no more than it has room for.
inline constexpr unsigned kWholeLeast = kMagazineUsual / 2 + 1;

// Hands a waiting, non-empty magazine on to the CPU cache, which may pass it on to the depot in a bundle. Where there
// is no CPU cache, or it is busy, the magazine goes to the depot at once, or to the folios if it is less than half
// full. Misuse found in a drain is reported as of `function`. Returns the magazine if it is empty afterwards, else
// null.
Magazine* cpu_cache_put(CpuCaches& caches, BinId bin, Magazine* magazine, const char* function);

// A waiting magazine with objects from the CPU cache or the depot; null if there is none. A whole one if it holds up to
// `want` objects, or up to twice as many where `want` is at least kWholeLeast; else `into`, which was empty, with
// `want` objects. `into` may be null where `want` is what a magazine holds. It stays the caller's if it is not
// returned.
Magazine* cpu_cache_get(CpuCaches& caches, BinId bin, unsigned want, Magazine* into);

// One object, for threads that do not cache the bin. Null if the CPU cache has none, or is busy. *emptied: a magazine
// that this call has emptied, now the caller's, or null. (Rejected: magazines of one object through the two functions
// above, which then search for double frees: Vyukov's chain had 0.87 of the speed, 1.12 of the processor time.)
void* cpu_cache_pop_one(CpuCaches& caches, BinId bin, Magazine** emptied);

// kNo: no magazine here has room for it, or it is busy. kTwice: the first magazine holds it already.
enum class Pushed { kNo, kYes, kTwice };
Pushed cpu_cache_push_one(CpuCaches& caches, BinId bin, void* object);

// Whether one of the bin's first few magazines in one of the first few caches holds the object; those that are busy are
// left out.
bool cpu_caches_hold(CpuCaches& caches, BinId bin, const void* object);

// A parked large object of at least `granules` granules and at most a quarter more. Null if the cache has none, or is
// busy.
void* cpu_cache_get_large(CpuCaches& caches, unsigned granules);
// Keeps a parked large object. False if it went back to its field, or others did to make room.
bool cpu_cache_put_large(CpuCaches& caches, void* parked, unsigned granules);

// Drains the lists that nobody has used since the last call; with `all` every list; without `large` no large objects.
// Returns how many magazines and large objects were drained.
unsigned cpu_caches_trim(CpuCaches& caches, bool all, bool large = true);

// How many bytes of pages the cached small objects may keep resident: an estimate, at most.
uint64_t cpu_caches_pin(const CpuCaches& caches);
// Shrinks the budget of each to a sixteenth, or sets it back.
void cpu_caches_spare(CpuCaches& caches, bool spare);

// In the child of a fork. `alone`: no other thread runs. Then caches whose section was held are emptied, and their
// objects lost; all parked large objects of `fields` go back to these. Else nothing is done, as another thread may be
// inside a section or hold a parked object; a section that was held stays busy.
void cpu_caches_after_fork(CpuCaches& caches, Fields& fields, bool alone);

// For statistics, read without a section: estimates under load.
uint64_t cpu_caches_objects(const CpuCaches& caches, BinId bin);
uint64_t cpu_caches_busy(const CpuCaches& caches);

}  // namespace folio
