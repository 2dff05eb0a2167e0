// The slow paths of free, sized free, and the question how long an object is:
//
// release_slow -> thread_cache_overflow (CPU cache, depot, folios)
//              -> give_objects, for a thread without a cache
//              -> CPU cache of large objects, huge_free, guard_give
//              -> a report, for what is not the start of a live object
#include "core/free.h"

#include "cache/cpu_cache.h"
#include "cache/thread_caches.h"
#include "cache/thread_large.h"
#include "config/options.h"
#include "core/clock.h"
#include "core/lifecycle.h"
#include "core/seam.h"
#include "insight/guards.h"
#include "space/huge.h"
#include "space/large.h"
#include "store/give.h"
#include "store/misuse.h"
#include "store/occupancy.h"
#include "store/watch.h"

namespace folio {

namespace {

bool in_huge(unsigned code) { return code == kCodeHugeStart || code == kCodeHugeInside; }

// The live huge object that starts at the address, or null after a report.
HugeBlock* find_huge(const void* object, const char* function) {
  HugeBlock* block = huge_at(object);
  if (block == nullptr) {
    report_foreign(function, object);
    return nullptr;
  }
  const bool live = block->state.load(order::relaxed) == kHugeLive;  // relaxed: the caller owns a live one
  if (block->base == object && live) return block;
  report_huge(function, object, *block);
  return nullptr;
}

// Frees of a watched bin go past the caches, so magazines hold only objects that were taken for mallocs to come. A
// second free of an object in one of these is found, but not in another thread's magazine.
void release_watched(void* object, BinId bin, const char* function) {
  ThreadCache* const cache = thread_cache();
  if (cache != nullptr) thread_cache_before_free(cache, bin);
  if ((cache != nullptr && thread_cache_holds(*cache, bin, object)) || cpu_caches_hold(process_caches, bin, object))
    return report_double_free(function, object, bin);
  give_object(bin, object, function);
  const unsigned frees = cache != nullptr ? thread_cache_count_watched(*cache, bin) : 1;
  if (frees != 0) watch_free(process_store, bin, object, frees);
  // Without decay its pages go at once.
  options.decay == 0 ? clock_after_slow_call() : clock_after_light_call();
}

void release_guarded(void* object, const char* function) {
  bool seen;
  if (!guard_park(object, function, &seen)) return;
  // Before somebody else can have the address.
  if (seen) seam_freed(object);
  guard_give(object);
  clock_after_slow_call();
}

void release_large(void* object, const char* function) {
  bool kept;
  {
    const CpuCacheWork work;
    bool seen;
    ThreadCache* const cache = thread_cache();
    const bool keeps = cache != nullptr && thread_may_keep_large();
    const unsigned granules = large_park(object, &seen, keeps ? LargeList::kGranulesMost : 0);
    if (granules == 0) return report_large(function, object);
    if (seen) seam_freed(object);
    bool gone;
    const bool by_thread = keeps && thread_keep_large(cache->large, object, granules, &gone);
    if (by_thread && !gone) return;
    LargeNear* const near = cache != nullptr ? &cache->near : nullptr;
    kept = !by_thread && cpu_cache_put_large(process_caches, object, granules, near);
  }
  kept ? clock_after_light_call() : clock_after_large_bytes(0);
}

// Returns how many bytes it had.
size_t release_huge(void* object, const char* function) {
  HugeBlock* block = find_huge(object, function);
  if (block == nullptr) return 0;
  const size_t bytes = block->usable_bytes;
  // Before somebody else can have the address.
  if (block->seen) seam_freed(object);
  if (huge_free(block)) return bytes;
  report_huge(function, object, *block);
  return 0;
}

}  // namespace

void release_slow(void* object, const char* function) noexcept {
  if (object == nullptr) return;
  start();
  const unsigned code = chunk_code(object);
  if (code == kCodeNone) return report_foreign(function, object);
  if (in_huge(code)) {
    return clock_after_huge_free(release_huge(object, function));
  }
  if (code == kCodeLarge) return release_large(object, function);
  if (code == kCodeGuarded) return release_guarded(object, function);
  if (is_watched(object)) return release_watched(object, bin_id(code), function);
  if (*thread_cursors.cursor[code] == object) return report_double_free(function, object, bin_id(code));
  if (ThreadCache* cache = thread_cache()) {
    thread_cache_overflow(cache, bin_id(code), object, function);
  } else {
    give_object(bin_id(code), object, function);
  }
  clock_after_slow_call();
}

bool find_extent_slow(const void* object, const char* function, Extent* extent) {
  const unsigned code = chunk_code(object);
  if (code == kCodeNone) {
    report_foreign(function, object);
    return false;
  }
  if (in_huge(code)) {
    const HugeBlock* block = find_huge(object, function);
    if (block == nullptr) return false;
    *extent = {block->usable_bytes, code};
    return true;
  }
  if (code == kCodeLarge) {
    const LargePlace place = large_place(object);
    if (!place.starts(object)) {
      report_large(function, object);
      return false;
    }
    *extent = {place.usable, code};
    return true;
  }
  if (code == kCodeGuarded) {
    const GuardPlace place = guard_find(object, function);
    *extent = {place.size, code};
    return place.slot != nullptr;
  }
  const Place place = place_of(object);
  if (place.descriptor == nullptr || place.base != object) {
    report_not_start(function, object, place, bin_id(code));
    return false;
  }
  if (!place.taken()) {
    report_double_free(function, object, bin_id(code));
    return false;
  }
  *extent = {static_cast<size_t>(place.slot_end - place.base), code};
  return true;
}

void release_sized_slow(void* object, size_t size, const char* function) noexcept {
  if (object == nullptr) return;
  // The front is closed, or the chunk is watched, and that alone sent the call here.
  if (size <= kSmallTableMost && kSizes.small_cursor[size] == chunk_code(object) * kCursorBytes)
    return release(object, function);
  Extent extent;
  if (!find_extent(object, function, &extent)) return;
  if (size > extent.usable_bytes) return report_wrong_size(function, object, size, extent.usable_bytes, extent.code);
  release(object, function);
}

}  // namespace folio
