// The open fast path of malloc. It fits one screen:
//
//   allocate(size)
//     size <= 1024       the bin's cursor from a table by size; load it, load *cursor; not null: step it, done
//                      12 instructions
//     size <= 32832      allocate_medium: the same by a second table
//     else, or *cursor is null (empty, or closed: not set up)      allocate_slow: malloc.cc
//
// Nothing else is tested: first use, a closed path and an empty magazine share the one branch.
#pragma once

#include <stddef.h>

#include "arch/arch.h"
#include "cache/thread_cache.h"
#include "config/size_classes.h"
#include "core/seam.h"

namespace folio {

// Each returns null with errno ENOMEM if there is no memory.
FOLIO_NOINLINE void* allocate_medium(size_t size);
FOLIO_NOINLINE void* allocate_slow(size_t size);

// An object of the bin, through the caches; where memory is short, of a larger one whose objects are aligned so, too.
void* allocate_in_bin(BinId bin, size_t alignment);

// Like allocate, all zero; like allocate, at a multiple of `alignment`, a power of two.
void* allocate_zeroed(size_t size);
void* allocate_aligned(size_t alignment, size_t size, bool zeroed);

// Where address space is short for an object of `more` bytes, or for one that grows by so many: gives back that of
// caches and of free chunks. Whether these may help, and no limit refuses so much.
bool give_back_for_large(size_t more, const char* function);
// Null with errno ENOMEM; notes it for who is told of pressure.
void* out_of_memory(size_t size);

FOLIO_INLINE void* pop_object(unsigned cursor_offset) {
  const Cursor cursor(cursor_offset);
  Slot* const at = cursor.load();
  void* object = *at;
  if (__builtin_expect(object == nullptr, false)) return nullptr;
  cursor.set(at + 1);
  return object;
}

// An object if a magazine of this thread holds one and the size is small, else null: for callers with a slow path of
// their own.
FOLIO_INLINE void* allocate_fast(size_t size) {
  if (__builtin_expect(size > kSmallTableMost, false)) return nullptr;
  return pop_object(front_small_cursor(size));
}

FOLIO_INLINE void* allocate(size_t size) {
  if (__builtin_expect(size > kSmallTableMost, false)) return allocate_medium(size);
  void* object = pop_object(front_small_cursor(size));
  if (__builtin_expect(object == nullptr, false)) return allocate_slow(size);
  return object;
}

}  // namespace folio
