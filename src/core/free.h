// The open fast path of free. It fits one screen:
//
//   release(object)
//     load the chunk's entry, which leads to its bin's cursor; load that
//     *cursor == object   the object freed last in this bin, again: misuse (null, too: bin 0's closed slot holds null)
//     the cursor's low 10 bits are 0  the magazine is full, or closed: not a bin's, watched, first use
//       either: release_slow: free.cc
//     store the object below the cursor, step the cursor                                                15 instructions
//
// The entry of an address that is not Folio's may be that of an object 16 TiB away (space/chunk_table.h): then it goes
// into the magazine, unnoticed here.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "arch/arch.h"
#include "cache/thread_cache.h"
#include "core/seam.h"
#include "space/chunk_table.h"
#include "store/descriptor.h"

namespace folio {

// All that the fast path does not do. `function` is the name that the program called, for messages. Keeps errno.
// noexcept, so that operator delete, which is compiled with exceptions, tail-calls it: 15 instructions in place of 17.
FOLIO_NOINLINE void release_slow(void* object, const char* function) noexcept;

FOLIO_INLINE void release_at(unsigned cursor_offset, void* object, const char* function) {
  const Cursor cursor(cursor_offset);
  Slot* const at = cursor.load();
  if (__builtin_expect(*at == object, false)) return release_slow(object, function);
  if (__builtin_expect(reinterpret_cast<uintptr_t>(at) % kMagazineBytes == 0, false))
    return release_slow(object, function);
  at[-1] = object;
  cursor.set(at - 1);
}
FOLIO_INLINE void release(void* object, const char* function) {
  release_at(cursor_offset_at(object), object, function);
}

// For callers that know the size. Where the size is of another bin than the object (after a realloc in place, say, or
// in a delete through the wrong class), the slow path decides: misuse if the address is not the start of an object, or
// if the size exceeds the object's.
void release_sized_slow(void* object, size_t size, const char* function) noexcept;

FOLIO_INLINE void release_sized(void* object, size_t size, const char* function) {
  const unsigned cursor = cursor_offset_at(object);
  if (__builtin_expect(size > kSmallTableMost, false)) {
    // A code that is no bin has size 0 here.
    if (size > kSizes.info[cursor / kCursorBytes].size) return release_sized_slow(object, size, function);
    return release_at(cursor, object, function);
  }
  const unsigned expected = front_small_cursor(size);
  unsigned of_size = expected;
  asm("" : "+r"(of_size));  // the compiler would take either of two equal numbers
  if (__builtin_expect(expected != cursor, false)) return release_sized_slow(object, size, function);
  // The one that is there without the object: where a program allocates and frees by turns, the next malloc waits for
  // this cursor, which otherwise waits for the entry, which waits for that object.
  release_at(of_size, object, function);
}

// The same for aligned objects, whose bin does not follow from their size alone.
FOLIO_INLINE void release_aligned_sized(void* object, size_t size, const char* function) {
  if (__builtin_expect(size > kSizes.info[chunk_code_unchecked(object)].size, false)) {
    return release_sized_slow(object, size, function);
  }
  release(object, function);
}

// What realloc, usable_size and sized frees need to know of an object. Reports misuse and returns false if the address
// is not the start of a live object. Objects of bins in a cache count as live.
struct Extent {
  size_t usable_bytes;
  unsigned code;
};
FOLIO_NOINLINE bool find_extent_slow(const void* object, const char* function, Extent* extent);

// The code of the chunk, if the address is the start of an object of a bin that is taken; else kCodeNone, also where
// only find_extent_slow knows. Needs no seal: whatever is in the descriptor, no more than its words are read.
FOLIO_INLINE unsigned code_of_taken_start(const void* object) {
  Window* const window = window_of(object);
  if (__builtin_expect(window == nullptr, false)) return kCodeNone;
  const unsigned code = chunk_code_inside(object);
  if (__builtin_expect(code - 1 >= kBins - 1, false)) return kCodeNone;
  auto* const d = static_cast<Descriptor*>(descriptor_inside(window, object));
  if (__builtin_expect(d == nullptr || d->bin != bin_id(code), false)) return kCodeNone;
  const BinInfo& info = kSizes.info[code];
  const unsigned number = object_number(info, d->first, object);
  if (number >= info.objects || d->first + size_t{number} * info.size != object) return kCodeNone;
  // relaxed: a question, not a claim
  const uint64_t word = d->occupancy(info, number / kFolioObjects).load(order::relaxed);
  return (word >> number % kFolioObjects & 1) != 0 ? code : kCodeNone;
}

// Objects of bins are answered inline: redis asks for the usable size of each object that it allocates or frees, and a
// call of place_of was 6 % of its time.
FOLIO_INLINE bool find_extent(const void* object, const char* function, Extent* extent) {
  const unsigned code = code_of_taken_start(object);
  if (__builtin_expect(code == kCodeNone, false)) return find_extent_slow(object, function, extent);
  *extent = {kSizes.info[code].size, code};
  return true;
}

}  // namespace folio
