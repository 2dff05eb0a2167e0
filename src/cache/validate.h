// Validation: checks a magazine that frees have filled, before other threads may take from it: for addresses that are
// wrong, and for objects that lie scattered. Only checks whose cost cannot be measured. Called by a thread's cache when
// a magazine leaves it, and by the depot.
#pragma once

#include "cache/magazine.h"

namespace folio {

// Finds in a waiting magazine what is wrong, reports it as of `function`, and takes it out:
//   - each address that is not the start of an object;
//   - an object that was freed twice with one free of its bin in between (the fast path finds it with none in between);
//   - if there is any of these, or with `thorough`: all but one copy of each object that is there more than once.
void validate(BinId bin, Magazine* magazine, bool thorough, const char* function);

// Whether the objects in a waiting magazine lie so scattered that they should go back to their folios, which hand out
// neighbours together. Handed on as it is, the magazine would scatter the program's next structures over the heap.
// (100,000 objects of 64 bytes that another thread freed at random: a walk over the next list of them took 150 ns a
// node in place of 1.7.) False for objects above 512 bytes.
bool scattered(BinId bin, Magazine* magazine);

// Whether a list of `objects` objects may keep more than 1 MiB of pages from being purged, judged by its first two
// magazines. (Judged as scattered() does, objects of 16 bytes that are freed in pairs in random order kept 20 MiB.)
bool pins_pages(Magazine* list, unsigned objects);

}  // namespace folio
