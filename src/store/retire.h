// Retiring: a chunk without a live object gives its address space back, so that other bins, large and huge objects, or
// the program's own mappings can have it. Only where address space is short: otherwise the pages of free objects are
// purged, and an empty chunk costs nothing.
//
//   claim   marks the chunk's commit word busy for good, so that nobody commits in it any more; then takes all objects,
//           for good. A thread that still holds the descriptor finds no room in it, ever.
//   leave   purges the pages; clears the entries in the chunk table and the window.
//   return  gives the address space back to where it came from.
//
// A retired descriptor waits for a chunk of the same bin at the same place. So a thread that still holds it never reads
// of another place; and a program that fills its address space with one size and another by turns does not need new
// descriptors each time (it starved after 210 turns). A thread that stops in between keeps the chunk from everybody,
// nothing else.
#pragma once

#include <stddef.h>

#include "store/hints.h"
#include "store/store.h"

namespace folio {

// The descriptor that was retired at this place, or null. All its objects are still taken, and no page is resident.
Descriptor* take_retired(HintBlock& block, const char* chunk);

// Commits the whole of a new chunk, for a descriptor that was retired. False if the kernel refuses: the descriptor
// waits again. (The whole: a thread that checked the commit before the retirement may take objects now.)
bool renew(Descriptor& d);

// Retires every chunk of a store that can be retired. Returns how many. Any thread; visits every chunk.
size_t retire_free_chunks(Store& store);

}  // namespace folio
