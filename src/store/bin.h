// Bins: the backing store. Objects are taken from and given back to folios, each of which is one occupancy word.
//
//   take   choose clear bits of a folio in the fullest class with room, in address order within a window; fetch_or
//          them. The bits that were clear before are the caller's. (Linearization point: the fetch_or.)
//   give   fetch_and the bits away. (Linearization point: the fetch_and.) A bit that was clear is a double free.
//   open   a new chunk, when no folio has room.
//
// No lock, no list; no call waits for another thread. The caches call these when they run dry or over; what no cache
// holds comes and goes here one by one.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "store/give.h"
#include "store/occupancy.h"

namespace folio {

// Takes up to `want` objects (1 to kMagazineObjects), in ascending order within a folio. Returns how many; 0 only if
// there is no memory.
unsigned take_objects(Store& store, BinId bin, void** objects, unsigned want);

// Like take_objects, but opens no chunk. *refused, if given, becomes true if there are free objects that cannot be used
// for want of memory.
unsigned take_objects_in_open_chunks(Store& store, BinId bin, void** objects, unsigned want, bool* refused = nullptr);

}  // namespace folio
