// reallocate -> expand (same slot, same huge block, free neighbours of a large object)
//            -> huge_move (pages, not bytes)
//            -> allocate, copy, release
#include "core/realloc.h"

#include <errno.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/free.h"
#include "core/ladder.h"
#include "core/malloc.h"
#include "space/huge.h"
#include "space/large.h"

namespace folio {

namespace {

bool is_huge(unsigned code) { return code == kCodeHugeStart; }

bool is_large(size_t size) { return size > kMediumMost && size <= kLargeMost; }

bool resize_in_place(void* object, const Extent& extent, size_t size) {
  if (is_huge(extent.code)) return size > kLargeMost && huge_resize(huge_at(object), size);
  if (extent.code == kCodeLarge && is_large(size)) return large_resize(object, size);
  // A shrunk object stays while it fills half of its slot; below that another bin saves memory.
  return size <= extent.usable_bytes && (size >= extent.usable_bytes / 2 || extent.usable_bytes <= 64);
}

}  // namespace

bool expand(void* object, size_t size, const char* function) {
  Extent extent;
  if (object == nullptr || !find_extent(object, function, &extent)) return false;
  if (size <= extent.usable_bytes) return true;
  if (extent.code == kCodeLarge) return is_large(size) && large_resize(object, size);
  return is_huge(extent.code) && huge_resize(huge_at(object), size);
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
  if (aligned && resize_in_place(object, extent, size)) {
    ladder_after_call();
    return object;
  }
  if (is_huge(extent.code) && size > extent.usable_bytes && alignment <= kChunkBytes) {
    HugeBlock* block = huge_move(huge_at(object), size);
    if (block == nullptr && ladder_make_room_for_large(size - extent.usable_bytes, "realloc")) {
      block = huge_move(huge_at(object), size);
    }
    ladder_after_call();
    if (block != nullptr) {
      clock_after_huge_free(0);
      return block->base;
    }
  }
  void* moved = allocate_aligned(alignment, size, false);
  if (moved == nullptr) {
    // A smaller size always fits where the object is.
    return aligned && size <= extent.usable_bytes ? object : nullptr;
  }
  __builtin_memcpy(moved, object, size < extent.usable_bytes ? size : extent.usable_bytes);
  release(object, function);
  return moved;
}

}  // namespace folio
