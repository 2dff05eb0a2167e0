// Bins: the backing store. Objects are taken from and given back to folios, each of which is one occupancy word.
//
//   take   choose clear bits of the fullest folio with room, lowest address among equals; fetch_or them. The bits that
//          were clear before are the caller's. (Linearization point: the fetch_or.)
//   give   fetch_and the bits away. (Linearization point: the fetch_and.) A bit that was clear already is a double
//          free.
//   open   a new chunk, when no folio has room.
//
// No locks, no lists; nothing waits. Called by the caches when they run dry or over, and directly for what is not
// cached.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "store/occupancy.h"

namespace folio {

// Takes up to `want` objects (1 to kMagazineObjects), in ascending order where they come from one folio. Returns how
// many; 0 only when there is no memory. *zero, where given, says whether the first one's pages are known to read as
// zero.
unsigned take_objects(Store& store, BinId bin, void** objects, unsigned want, bool* zero = nullptr);

// The same as take_objects without opening a chunk. *refused, where given, becomes true if there is room that cannot be
// used, for want of memory.
unsigned take_objects_in_open_chunks(Store& store, BinId bin, void** objects, unsigned want, bool* zero = nullptr,
                                     bool* refused = nullptr);

// Gives up to kMagazineObjects objects back, all of `bin`, each to the store that it came from; those of one folio by
// one instruction. Misuse is reported as of `function`.
void give_objects(BinId bin, void* const* objects, unsigned count, const char* function);

// The same for a few lists of objects, of up to kMagazineObjects each. (Of magazines one by one, where a small heap is
// freed in random order, each folio is in most of them.)
struct ObjectList {
  void* const* objects;
  unsigned count;
};
inline constexpr unsigned kGiveListsMost = 4;
void give_lists(BinId bin, const ObjectList* lists, unsigned n, const char* function);

// The same for one, in 160 instructions less.
void give_object(BinId bin, void* object, const char* function);

}  // namespace folio
