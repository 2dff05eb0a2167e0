// Retire: a chunk without a taken object gives its address space back, so that other bins, large and huge objects, or
// the program's own mappings can have it. Only where address space is short: otherwise its pages are purged, and an
// empty chunk costs nothing.
//
//   claim   marks the chunk's commit word busy, so that nobody commits in it any more; then takes all objects. Both for
//           good: a thread that still has the descriptor finds no room in it.
//   leave   purges the pages; clears the entries in the descriptor map and the chunk table.
//   keep    pushes the descriptor to a list of its hint block.
//   return  gives the address space back to where it came from.
//
// A retired descriptor waits for a chunk of the same bin at the same place. So a thread that still has it is never led
// to another place; and a program that fills its address space with one size and another by turns needs no new
// descriptors each time (it starved after 210 turns). A thread that stops for ever in between keeps the chunk from
// everybody, nothing else.
#pragma once

#include <stddef.h>

#include "store/hints.h"
#include "store/store.h"

namespace folio {

// The descriptor that was retired at this place, or null. All its objects are still taken, and no page is resident.
Descriptor* take_retired(HintBlock& block, const char* chunk);

// Commits a new chunk for a descriptor that was retired; all of it, since a thread that checked the commit before the
// retirement may take objects now. False if the kernel refuses: the descriptor waits again.
bool renew(Descriptor& d);

// Retires every chunk of the store that can be retired. Returns how many. Any thread; visits every chunk.
size_t retire_free_chunks(Store& store);

}  // namespace folio
