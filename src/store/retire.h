// Retiring: a chunk of which nothing is live gives its address space back, so that other bins, large and huge objects,
// or the program's own mappings can have it. Only where address space is short: what is free is purged anyway, and a
// chunk costs nothing then.
//
//   claim   the word of what is committed, marked busy for good, so that nobody commits in it any more; then all
//           objects, for good. Whoever still holds the descriptor finds no room in it, ever.
//   leave   its pages go; its entries in the chunk table and the window are cleared.
//   return  the address space goes back to where it came from.
//
// Descriptors wait for a chunk of the same bin at the same place: so one that somebody still holds never tells of
// another place, and a program that fills its address space with one size and another by turns needs no more of them
// each time (it starved after 210 turns). A thread that stops in between keeps the chunk from everybody, nothing else.
#pragma once

#include <stddef.h>

#include "store/hints.h"
#include "store/store.h"

namespace folio {

// The descriptor that was retired at this place, or null. All its objects are still taken; what it says of pages is of
// then.
Descriptor* take_retired(HintBlock& block, const char* chunk);

// All of a new chunk's memory is committed, for a descriptor that was retired. False if the kernel refuses: it waits
// again. (Who looked how far it was committed before may take objects of it now: as far as then it has to be.)
bool renew(Descriptor& d);

// Retires every chunk of a store that can be. Returns how many. Any thread; looks at every chunk.
size_t retire_free_chunks(Store& store);

}  // namespace folio
