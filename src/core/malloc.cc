// The slow paths of malloc, calloc and aligned allocation:
//
// allocate_medium -> pop_object, or
// allocate_slow   -> allocate_in_bin -> thread_cache_refill (CPU cache, depot, folios)
//                                    -> larger bins that have room, when there is no address space for a chunk
//                 -> CPU cache, large_alloc, above 32 KiB
//                 -> huge_alloc, above 8 MiB
#include "core/malloc.h"

#include <errno.h>

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_caches.h"
#include "cache/thread_large.h"
#include "core/clock.h"
#include "core/give_back.h"
#include "core/ladder.h"
#include "core/lifecycle.h"
#include "core/seam.h"
#include "insight/guards.h"
#include "space/chunks.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/metadata.h"
#include "space/pages.h"
#include "space/room.h"
#include "store/bin.h"
#include "store/misuse.h"
#include "store/retire.h"

namespace folio {

void* out_of_memory(size_t size) {
  ladder_note_refused(size);
  errno = ENOMEM;
  return nullptr;
}

namespace {

// Where address space or memory is short, a larger object is better than none. (Of 64 MiB of address space full of one
// size, every other object freed, the next smaller size gets 45 to 51 MiB; without this none.)
void* allocate_in_larger_bin(BinId bin, size_t alignment) {
  for (unsigned i = index(bin) + 1; i < kBins; ++i) {
    void* object = nullptr;
    const BinInfo& info = info_of(bin_id(i));
    if (info.size >= info_of(bin).size && size_t{1} << info.natural_shift >= alignment &&
        take_objects_in_open_chunks(process_store, bin_id(i), &object, 1) == 1) {
      return object;
    }
  }
  return nullptr;
}

// Where address space is short for so many bytes: empties the caches, which may hold the neighbours that a large object
// needs, and, if chunks have as much, retires those that are empty then. False if neither can help, as with a program
// that asks for a petabyte to see whether it gets it. For a bin that is enough; for large and huge objects (`unmap`)
// vacant clusters are unmapped. (At the limit of mappings what is unmapped cannot be mapped again: a program that
// filled its heap in turns had 0.1 MiB in the second turn, with clusters unmapped for bins too, in place of 52.)
bool give_back_chunks(size_t size, bool unmap, const char* function) {
  const bool in_chunks = size <= chunks_in_use() * kChunkBytes;
  if (!in_chunks && size > kLargeMost) return false;
  if (ThreadCache* cache = thread_cache()) thread_cache_drain(cache, function);
  empty_shared_caches();
  if (in_chunks) retire_free_chunks(process_store, unmap);
  return true;
}

}  // namespace

// Not where a limit refuses: chunks that come again elsewhere need new descriptors, 12 MiB of metadata after 1,200
// turns at a limit of 24 MiB in place of 8.
bool give_back_for_large(size_t more, const char* function) {
  return has_room_for_large(more) && give_back_chunks(more, true, function);
}

namespace {

void* start_of_huge(HugeBlock* block, size_t size, bool zeroed) {
  huge_foresee(block, zeroed);
  const bool again = zeroed && block->zeroed;
  block->zeroed = zeroed;
  if (zeroed) {
    const size_t used = size < block->touched_bytes ? size : block->touched_bytes;
    // An array of zeroes that was written all over is likely to be followed by another one. (64 MiB, filled and freed
    // in turns, took 2.1 s for 30 turns without this, now 0.36. What was no such array says nothing: 100 of 20 MiB, of
    // which one byte in each MiB is written, each behind a dense object of malloc, had 2000 MiB resident, now 9.)
    if (again && used > size / 2 && !looks_sparse(block->base, used)) {
      __builtin_memset(block->base, 0, used);
      return block->base;
    }
    // Where at most half of the array may be resident, it is purged, not cleared: the resident part may be sparse, too.
    // (100 MiB of which one byte in each MiB is written, by turns: 2048 page faults in place of 8.)
    if (used > size / 2 || !purge_pages(block->base, used)) zero_pages(block->base, used);
  }
  return block->base;
}

void* allocate_huge(size_t size, size_t alignment, bool zeroed) {
  if (size > PTRDIFF_MAX) return out_of_memory(size);
  HugeBlock* block = huge_alloc(size, alignment);
  if (block == nullptr && ladder_make_room_for_large(size, "malloc")) block = huge_alloc(size, alignment);
  if (block == nullptr && give_back_for_large(size, "malloc")) block = huge_alloc(size, alignment);
  if (block == nullptr) {
    // No address space: perhaps large objects have left some.
    const bool may_fit = size <= kFieldBytesMost && alignment <= kClusterBytes;
    void* const object = may_fit ? large_alloc(process_fields, size, alignment, zeroed, false) : nullptr;
    return object == nullptr ? out_of_memory(size) : object;
  }
  void* const object = start_of_huge(block, size, zeroed);
  clock_after_large_call(size);
  return object;
}

// A large object out of the CPU's cache, whose pages are there.
void* take_parked(size_t size, size_t alignment, bool zeroed) {
  if (alignment > kGranuleBytes) return nullptr;
  const CpuCacheWork work;
  const unsigned granules = large_granules(size, alignment);
  ThreadCache* const cache = thread_cache();
  void* parked = cache != nullptr && thread_may_keep_large() ? thread_find_large(cache->large, granules) : nullptr;
  if (parked == nullptr) parked = cpu_cache_get_large(process_caches, granules);
  if (parked == nullptr) return nullptr;
  void* const object = large_unpark(parked, size, alignment, zeroed);
  if (object == nullptr) report_large_twice(parked);
  return object;
}

void* take_large(size_t size, size_t alignment, bool zeroed) {
  const bool cached = large_granules(size, alignment) <= LargeList::kGranulesMost;
  ThreadCache* const cache = cached ? nullptr : thread_cache();
  return large_alloc(process_fields, size, alignment, zeroed, true, cache != nullptr ? &cache->near : nullptr);
}

// More than a bin serves, in size or alignment.
void* allocate_beyond_bins(size_t size, size_t alignment, bool zeroed) {
  if (size > kLargeMost || alignment > kClusterBytes) return allocate_huge(size, alignment, zeroed);
  void* object = take_parked(size, alignment, zeroed);
  if (object != nullptr) {
    clock_after_light_call();
    return object;
  }
  object = take_large(size, alignment, zeroed);
  if (object == nullptr && ladder_make_room_for_large(size, "malloc")) object = take_large(size, alignment, zeroed);
  if (object == nullptr && huge_purge(true, kUnlimited) != 0) object = take_large(size, alignment, zeroed);
  if (object == nullptr && cpu_caches_trim(process_caches, true) != 0) object = take_large(size, alignment, zeroed);
  if (object == nullptr && give_back_for_large(size, "malloc")) object = take_large(size, alignment, zeroed);
  clock_after_large_bytes(size);
  return object == nullptr ? out_of_memory(size) : object;
}

// For a call while the seam is not open: an object that is sampled or guarded. Null: the call goes on as any.
void* choose(size_t size, size_t alignment, bool zeroed) {
  const uint64_t interval = seam_see(size);
  if (void* const guarded = guard_allocate(size, alignment, zeroed)) {
    if (interval != 0) seam_chose(guarded, size, interval);
    clock_after_slow_call();
    return guarded;
  }
  if (interval == 0) return nullptr;
  // Where there is no memory for it, null: the call goes on, and makes room or fails there.
  void* object = nullptr;
  if (size <= kLargeMost && alignment <= kClusterBytes) {
    const size_t wanted = size <= kMediumMost ? info_of(bin_of(size)).size : size;  // as folio_good_size says
    object = take_parked(wanted, alignment, zeroed);
    if (object == nullptr) object = take_large(wanted, alignment, zeroed);
  } else if (HugeBlock* const block = huge_alloc(size, alignment)) {
    object = start_of_huge(block, size, zeroed);
  }
  if (object == nullptr) return nullptr;
  seam_chose(object, size, interval);
  clock_after_large_call(size);
  return object;
}

}  // namespace

void* allocate_in_bin(BinId bin, size_t alignment) {
  const auto take = [&] {
    void* one = nullptr;
    return take_objects(process_store, bin, &one, 1) == 1 ? one : nullptr;
  };
  ThreadCache* cache = thread_cache();
  void* object = cache != nullptr ? thread_cache_refill(cache, bin) : take();
  if (object == nullptr && ladder_make_room("malloc")) object = take();
  const bool kernel_refuses = object == nullptr && has_room(kChunkBytes);  // as in give_back_for_large
  if (kernel_refuses && give_back_chunks(kChunkBytes, false, "malloc")) object = take();
  // What is writable is limited: unmapping a cluster frees more of it than the metadata for a chunk asks for.
  const bool for_metadata = kernel_refuses && object == nullptr && metadata_charge_is_refused();
  if (for_metadata && unmap_vacant_clusters(1) != 0) object = take();
  // Not if it was a free chunk that was missing until just now.
  const bool lends = kernel_refuses && object == nullptr && metadata_is_refused();
  if (lends && lend_to_metadata()) object = take();
  if (object == nullptr && huge_purge(true, kUnlimited) != 0) object = take();
  if (object == nullptr) object = allocate_in_larger_bin(bin, alignment);
  clock_after_slow_call();
  return object == nullptr ? out_of_memory(info_of(bin).size) : object;
}

void* allocate_medium(size_t size) {
  if (size > kMediumMost) return allocate_slow(size);
  void* object = pop_object(front_medium_bin(size) * kCursorBytes);
  return object != nullptr ? object : allocate_slow(size);
}

namespace {

// Apart, so that the others need no stack frame.
FOLIO_NOINLINE void* refill(size_t size) { return allocate_in_bin(bin_of(size), 1); }

// Where the front is closed, or was a moment ago, the bin's magazine may hold what is wanted.
FOLIO_INLINE void* pop_or_refill(unsigned cursor_offset, size_t size) {
  void* const object = pop_object(cursor_offset);
  return object != nullptr ? object : refill(size);
}

FOLIO_INLINE void* allocate_unseen(size_t size) {
  if (__builtin_expect(size <= kSmallTableMost, true)) return pop_or_refill(kSizes.small_cursor[size], size);
  if (size > kMediumMost) return allocate_beyond_bins(size, 1, false);
  return pop_or_refill(kSizes.medium_bin[(size + 63) / 64] * kCursorBytes, size);
}

FOLIO_NOINLINE void* allocate_chosen(size_t size) {
  if (start()) {
    if (void* const chosen = choose(size, 1, false)) return chosen;
  }
  return allocate_unseen(size);
}

// For the profile, and for guarded objects too, maybe.
FOLIO_NOINLINE void* allocate_seen(size_t size) {
  const bool guarding = guard_interval.get() != 0;
  if ((guarding && !guard_waits(size)) || !seam_passes(size)) return allocate_chosen(size);
  if (guarding) guard_passes(size);
  return allocate_unseen(size);
}

}  // namespace

void* allocate_slow(size_t size) {
  // [start] acquire: sees the options, as in start(). unseen: as there
  const uint32_t mode = seam_mode.load(order::acquire);
  // First, as every call comes here then.
  if (__builtin_expect(mode == kGuarding, true)) {
    if (__builtin_expect(!guard_passes(size), false)) return allocate_chosen(size);
  } else if (__builtin_expect(mode != kOpen, false)) {
    return allocate_seen(size);
  }
  return allocate_unseen(size);
}

void* allocate_zeroed(size_t size) {
  if (size <= kMediumMost) {
    void* object = allocate(size);
    return object == nullptr ? nullptr : __builtin_memset(object, 0, size);
  }
  void* const chosen = start() ? choose(size, 1, true) : nullptr;
  return chosen != nullptr ? chosen : allocate_beyond_bins(size, 1, true);
}

namespace {

FOLIO_NOINLINE void* allocate_aligned_slow(size_t alignment, size_t size, bool zeroed) {
  if (start()) {
    if (void* const chosen = choose(size, alignment, zeroed)) return chosen;
  }
  const BinId bin = aligned_bin(alignment, size);
  if (bin == BinId::kNone) return allocate_beyond_bins(size, alignment, zeroed);
  void* object = pop_object(index(bin) * kCursorBytes);
  if (object == nullptr) object = allocate_in_bin(bin, alignment);
  return object == nullptr || !zeroed ? object : __builtin_memset(object, 0, size);
}

}  // namespace

void* allocate_aligned(size_t alignment, size_t size, bool zeroed) {
  if (alignment <= 8 || (alignment == 16 && size >= 16)) return zeroed ? allocate_zeroed(size) : allocate(size);
  // Relaxed: the options do not matter here. These calls do not go by the front.
  if (!zeroed && __builtin_expect(seam_mode.load(order::relaxed) == kOpen, true)) {
    const BinId bin = aligned_bin(alignment, size);
    // No bin: bin 0, whose cursor is closed.
    if (void* const object = pop_object(index(bin) * kCursorBytes)) return object;
  }
  return allocate_aligned_slow(alignment, size, zeroed);
}

}  // namespace folio
