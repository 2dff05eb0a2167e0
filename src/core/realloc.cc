// Resizes an object by the cheapest of three ways:
//
// reallocate -> expand (same slot, same huge block, free neighbours of a large object)
//            -> huge_move (pages, not bytes)
//            -> allocate, copy, release
#include "core/realloc.h"

#include <errno.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/free.h"
#include "core/ladder.h"
#include "core/lifecycle.h"
#include "core/malloc.h"
#include "core/seam.h"
#include "os/os.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/pages.h"
#include "space/room.h"
#include "store/store.h"

namespace folio {

namespace {

bool starts_huge(unsigned code) { return code == kCodeHugeStart; }

bool is_large(size_t size) { return size > kMediumMost && size <= kLargeMost; }

// A large object that grew by less than an eighth is likely to grow on, in steps. So when it had to move, it then gets
// a quarter more, if the granules behind it are free. (Eight buffers that grow in turns to 4 MB by steps of 4 KiB:
// without it 1.2 GB are copied in place of 0.6. Rejected: to allocate the quarter with the move, which took 4 % more
// memory, and 4 % less time.)
constexpr size_t kStepShare = 8, kRoomShare = 4;

void give_room(void* moved, size_t size, size_t before) {
  const size_t more = size + size / kRoomShare;
  const bool in_steps = size > before && size - before < before / kStepShare;
  if (in_steps && is_large(size) && is_large(more) && !room_is_tight()) large_resize(moved, more);
}

// A shrunk object of a bin stays while it fills half of its slot; below that another bin saves memory. A sixteenth
// less is enough, as bins lie just above powers of two: 16 KiB that become 32 and 16 again copied 16 KiB each time.
bool stays_in_slot(size_t usable, size_t size) {
  return size <= usable && (size + size / 16 >= usable / 2 || usable <= 64);
}

// A shrunk huge object stays in its block, which gives back the pages behind it, down to this size: below it, what is
// copied costs little, and a block costs a mapping or two. (Where all up to kLargeMost moved, a buffer of 8.38 MB that
// grew by 20 KB and shrank again was copied by each call: 0.7 ms.)
constexpr size_t kStaysHuge = kLargeMost / 4;

// From so many bytes on an object may have pages that were never written, and its copy shall not have them either. (500
// of 1.5 MB, of which one byte is written, that grow to 2.25: 720 MiB without, 166 with it. From 256 KiB on 300 KB of
// zeros, in pages that are there, took 1.2 of the time with all that is written afterwards. Dense ones take 1.05 by
// blocks, which the libc does not copy its fastest way: hence the look.)
constexpr size_t kMayBeSparse = size_t{1} << 20;

// The new place of an object that grows. If at least four fifths of it are copied, as then little can stay untouched, a
// chunk that is opened for it may be part of a huge page (store/cluster.h). (Without a bound 4,000 objects of 2 KB that
// grow to 32, and are not written on, had 142 MiB resident in place of 16.)
void* allocate_grown(size_t alignment, size_t size, size_t before) {
  const bool grows = alignment == 1 && size > before && size - before <= before / 4;
  if (!grows || size < kPageBytesLeast || size > kMediumMost) return allocate_aligned(alignment, size, false);
  Hint<bool>& growing = process_store.of(bin_of(size)).growing;
  growing.set(true);
  void* const object = allocate_aligned(alignment, size, false);
  growing.set(false);
  return object;
}

bool resize_in_place(void* object, const Extent& extent, size_t size) {
  if (starts_huge(extent.code)) return size >= kStaysHuge && huge_resize(huge_at(object), size);
  if (extent.code == kCodeLarge && is_large(size)) {
    // It keeps as much as it may have been given.
    const size_t usable = extent.usable_bytes, rest = usable / kRoomShare + kGranuleBytes;
    return (size <= usable && usable - size <= rest) || large_resize(object, size);
  }
  if (extent.code == kCodeGuarded) return size == extent.usable_bytes;  // its end is what is guarded
  return stays_in_slot(extent.usable_bytes, size);
}

// As resize_in_place, with all that a call ends with.
bool resize(void* object, const Extent& extent, size_t size) {
  if (!resize_in_place(object, extent, size)) return false;
  if (extent.code >= kBins) seam_resized(object, size, start());
  ladder_after_call();
  if (size > extent.usable_bytes) clock_after_large_call(size - extent.usable_bytes);
  return true;
}

// As allocate_huge makes room.
HugeBlock* move_huge(HugeBlock* from, size_t size, size_t more) {
  HugeBlock* to = huge_move(from, size, seam_leaves);
  if (to == nullptr && ladder_make_room_for_large(more, "realloc")) to = huge_move(from, size, seam_leaves);
  if (to == nullptr && give_back_for_large(more, "realloc")) to = huge_move(from, size, seam_leaves);
  return to;
}

}  // namespace

bool expand(void* object, size_t size, const char* function) {
  Extent extent;
  if (object == nullptr || !find_extent(object, function, &extent)) return false;
  if (size <= extent.usable_bytes) return true;
  const bool large = extent.code == kCodeLarge && is_large(size) && large_resize(object, size);
  const bool huge = starts_huge(extent.code) && huge_resize(huge_at(object), size);
  if (!large && !huge) return false;
  seam_resized(object, size, start());
  clock_after_large_call(size - extent.usable_bytes);
  return true;
}

void* reallocate(void* object, size_t alignment, size_t size, const char* function) {
  if (object == nullptr) return allocate_aligned(alignment, size, false);
  if (size == 0) {
    release(object, function);
    return nullptr;
  }
  Extent extent;
  if (!find_extent(object, function, &extent)) return nullptr;
  if (size > PTRDIFF_MAX) {
    errno = ENOMEM;
    return nullptr;
  }
  const bool aligned = reinterpret_cast<uintptr_t>(object) % alignment == 0;
  if (aligned && resize(object, extent, size)) return object;
  if (starts_huge(extent.code) && size > extent.usable_bytes && alignment <= kClusterBytes) {
    HugeBlock* const block = move_huge(huge_at(object), size, size - extent.usable_bytes);
    ladder_after_call();
    if (block != nullptr) {
      seam_resized(block->base, size, start());
      clock_after_large_call(size - extent.usable_bytes);
      return block->base;
    }
    // Growth takes less than a move, and what the move's tries gave back may suffice.
    if (aligned && resize(object, extent, size)) return object;
    // Not by a copy: room for it could only be what another thread gave back meanwhile, and all pages of both are read
    // (16 s for 4 GiB of which 8 bytes were written).
    if (size > kFieldBytesMost) return out_of_memory(size);
  }
  const int before = errno;
  void* moved = allocate_grown(alignment, size, extent.usable_bytes);
  if (moved == nullptr) {
    // A smaller size always fits where the object is.
    if (!aligned || size > extent.usable_bytes) return nullptr;
    errno = before;
    return object;
  }
  give_room(moved, size, extent.usable_bytes);
  const size_t bytes = size < extent.usable_bytes ? size : extent.usable_bytes;
  if (bytes >= kMayBeSparse && looks_sparse(static_cast<const char*>(object), bytes)) {
    os::copy_filled(static_cast<char*>(moved), static_cast<const char*>(object), bytes);
  } else {
    __builtin_memcpy(moved, object, bytes);
  }
  release(object, function);
  return moved;
}

// A call that moves takes 131 instructions in place of 210, one that leaves the object where it is 84 in place of 139.
void* reallocate_held(void* object, size_t size, const char* function) {
  const unsigned code = code_of_taken_start(object);
  if (__builtin_expect(code != kCodeNone && size - 1 < kMediumMost, true)) {
    const size_t usable = kSizes.info[code].size;
    if (stays_in_slot(usable, size)) return object;
    const bool small = size <= kSmallTableMost;
    if (void* const moved = pop_object(small ? front_small_cursor(size) : front_medium_bin(size) * kCursorBytes)) {
      size_t bytes = size < usable ? size : usable;
      // Else gcc, which knows that it is small, copies by a string instruction: a parser took 1.3 times as long.
      asm("" : "+r"(bytes));
      __builtin_memcpy(moved, object, bytes);
      release(object, function);
      return moved;
    }
  }
  return reallocate(object, 1, size, function);
}

}  // namespace folio
