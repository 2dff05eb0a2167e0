// The slow paths of free, sized free, and the question how long an object is:
//
// release_slow -> thread_cache_overflow (CPU cache, depot, folios)
//              -> give_objects, for a thread without a cache
//              -> CPU cache of large objects, huge_free, guard_give
//              -> a report, for what is not the start of a live object
#include "core/free.h"

#include "cache/cpu_cache.h"
#include "cache/thread_caches.h"
#include "core/clock.h"
#include "core/lifecycle.h"
#include "core/seam.h"
#include "insight/guards.h"
#include "os/report.h"
#include "space/huge.h"
#include "space/large.h"
#include "store/bin.h"
#include "store/misuse.h"
#include "store/occupancy.h"
#include "store/watch.h"

namespace folio {

namespace {

void report_huge(const void* object, const HugeBlock& block, const char* function) {
  Text line = misuse_line(function, object);
  if (object == block.base) {
    line << "double free of a huge object";
    return report_misuse(line, "double-free");
  }
  line << "not the start of an object: inside a huge object of " << static_cast<uint64_t>(block.usable_bytes)
       << " bytes at " << static_cast<const void*>(block.base);
  report_misuse(line, "invalid-free");
}

void report_foreign(const void* object, const char* function) {
  if (const HugeBlock* block = huge_beyond(object)) return report_huge(object, *block, function);
  Text line = misuse_line(function, object);
  line << "not an address of Folio's";
  report_misuse(line, "foreign-pointer");
}

void report_large(const void* object, const char* function) {
  const LargePlace place = large_place(object);
  Text line = misuse_line(function, object);
  if (place.field == nullptr) {
    line << "descriptor of chunk " << static_cast<const void*>(chunk_start(object)) << " is damaged";
    return report_misuse(line, "damaged-descriptor");
  }
  if (place.holds_or_keeps_spare(object)) {
    line << "not the start of an object: inside a large object of " << static_cast<uint64_t>(place.usable)
         << " bytes at " << static_cast<const void*>(place.base);
    return report_misuse(line, "invalid-free");
  }
  line << "no large object is there: freed before, or never returned";
  report_misuse(line, "double-free");
}

bool in_huge(unsigned code) { return code == kCodeHugeStart || code == kCodeHugeInside; }

// The live huge object that starts at the address, or null after a report.
HugeBlock* find_huge(const void* object, const char* function) {
  HugeBlock* block = huge_at(object);
  if (block == nullptr) {
    report_foreign(object, function);
    return nullptr;
  }
  const bool live = block->state.load(order::relaxed) == kHugeLive;  // relaxed: the caller owns a live one
  if (block->base == object && live) return block;
  report_huge(object, *block, function);
  return nullptr;
}

// What is watched is not cached, so magazines hold few objects of the bin: those that were taken from the folios for
// mallocs to come. Where another thread's holds it, that is not seen.
void release_watched(void* object, BinId bin, const char* function) {
  if (ThreadCache* cache = thread_cache()) thread_cache_before_free(cache, bin);
  if (thread_cache_holds(bin, object) || cpu_caches_hold(bin, object)) return report_double_free(function, object, bin);
  give_object(bin, object, function);
  watch_free(process_store, bin, object);
  clock_after_light_call();
}

void release_guarded(void* object, const char* function) {
  bool seen;
  if (!guard_park(object, function, &seen)) return;
  // Before somebody else can have the address.
  if (seen) seam_freed(object);
  guard_give(object);
  clock_after_slow_call();
}

// Returns how many bytes it had.
size_t release_huge(void* object, const char* function) {
  HugeBlock* block = find_huge(object, function);
  if (block == nullptr) return 0;
  const size_t bytes = block->usable_bytes;
  // Before somebody else can have the address.
  if (block->seen) seam_freed(object);
  if (huge_free(block)) return bytes;
  report_huge(object, *block, function);
  return 0;
}

}  // namespace

void release_slow(void* object, const char* function) {
  if (object == nullptr) return;
  start();
  const unsigned code = chunk_code(object);
  if (code == kCodeNone) return report_foreign(object, function);
  if (in_huge(code)) {
    return clock_after_huge_free(release_huge(object, function));
  }
  if (code == kCodeLarge) {
    bool seen;
    const unsigned granules = large_park(object, &seen);
    if (granules == 0) return report_large(object, function);
    if (seen) seam_freed(object);
    if (cpu_cache_put_large(object, granules)) return clock_after_light_call();
    return clock_after_large_call();
  }
  if (code == kCodeGuarded) return release_guarded(object, function);
  if (is_watched(object)) return release_watched(object, bin_id(code), function);
  if (*thread_cursors.cursor[code] == object) return report_double_free(function, object, bin_id(code));
  if (ThreadCache* cache = thread_cache()) {
    thread_cache_overflow(cache, bin_id(code), object, function);
  } else {
    give_objects(bin_id(code), &object, 1, function);
  }
  clock_after_slow_call();
}

bool find_extent_slow(const void* object, const char* function, Extent* extent) {
  const unsigned code = chunk_code(object);
  if (code == kCodeNone) {
    report_foreign(object, function);
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
      report_large(object, function);
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

void release_sized_slow(void* object, size_t size, const char* function) {
  if (object == nullptr) return;
  // The front is closed, and only sent the call here.
  if (size <= kSmallTableMost && kSizes.small_cursor[size] == cursor_offset_at(object))
    return release(object, function);
  Extent extent;
  if (!find_extent(object, function, &extent)) return;
  if (size > extent.usable_bytes) {
    Text line = misuse_line(function, object);
    line << "size " << static_cast<uint64_t>(size) << " given, but the object has "
         << static_cast<uint64_t>(extent.usable_bytes) << " usable bytes";
    if (extent.code < kBins) line << " (bin " << static_cast<uint64_t>(extent.code) << ")";
    return report_misuse(line, "wrong-size");
  }
  release(object, function);
}

}  // namespace folio
