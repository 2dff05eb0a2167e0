// CPU caches: for each CPU, lists of magazines by bin, about a level-2 cache worth of objects. What
// one thread frees another that runs on the same CPU takes, while it is in that CPU's cache.
//
// Guarded by a section that is tried, never waited for (sync/try_section.h). Busy, which takes a thread that was
// preempted inside, means that the caller goes on to the depot, or straight to the folios or fields.
#pragma once

#include <stddef.h>
#include <stdint.h>

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
extern Atomic<CpuCache*> cpu_caches[kCpusMost];

// From this many objects on a magazine is passed on whole; fewer are copied into or out of one that waits, so that
// caches and depot hold full magazines and a thread with little room gets no more than it has room for.
inline constexpr unsigned kWholeLeast = kMagazineUsual / 2 + 1;

// Hands a waiting, non-empty magazine on: to the CPU cache, or from there as part of a bundle to the depot. Where there
// is no such cache, or it is busy, to the depot at once; to the folios, if it is less than half full. Misuse found when
// something is drained is reported as of `function`. Returns the magazine if it came back empty, else null.
Magazine* cpu_cache_put(BinId bin, Magazine* magazine, const char* function);

// A waiting magazine with objects from the CPU cache or the depot: a whole one where it holds up to `want`, or up to
// twice as many and `want` is at least kWholeLeast; else `want` of them in `into`, which is empty. Null if there is
// none. `into` may be null where as many are wanted as a magazine holds; it stays the caller's unless it is what is
// returned.
Magazine* cpu_cache_get(BinId bin, unsigned want, Magazine* into);

// One object, for threads that do not cache the bin. Null if there is none here, or it is busy. *emptied: a magazine
// that this used up, the caller's now, or null. (Rejected: by magazines of one, through the two functions above, which
// look for what is freed twice then: Vyukov's chain 0.87 of the speed, 1.12 of the processor time.)
void* cpu_cache_pop_one(BinId bin, Magazine** emptied);

// kNo: no magazine here has room for it, or it is busy. kTwice: the first magazine holds it already.
enum class Pushed { kNo, kYes, kTwice };
Pushed cpu_cache_push_one(BinId bin, void* object);

// Whether one of the bin's first few magazines in one of the first few caches holds the object; those that are busy are
// left out.
bool cpu_caches_hold(BinId bin, const void* object);

// A parked large object of at least `granules` granules and at most a quarter more. Null if the cache has none, or is
// busy.
void* cpu_cache_get_large(unsigned granules);
// Keeps a parked large object. False if it went back to its field, or others did to make room.
bool cpu_cache_put_large(void* parked, unsigned granules);

// Drains the lists that nobody has used since the last call; with `all` every list; without `large` no large objects.
// Returns how many magazines and large objects were drained.
unsigned cpu_caches_trim(bool all, bool large = true);

// How many bytes of pages the cached small objects may keep resident: an estimate, at most.
uint64_t cpu_caches_pin();
// Shrinks the budget of all CPU caches to a sixteenth, or sets it back.
void cpu_caches_spare(bool spare);

// In the child of a fork: sections that were held are emptied, their objects lost. Large objects go back to their
// fields, also those that were on their way. Nothing of that unless `alone`: a thread that runs already may be inside
// of one, or have an object on its way; a section that was held stays busy then.
void cpu_caches_after_fork(bool alone);

// For statistics, read without a section: estimates under load.
uint64_t cpu_caches_objects(BinId bin);
uint64_t cpu_caches_busy();

}  // namespace folio
