// Validation: a magazine that frees have filled is looked through before others may take from it, for what is wrong in
// it and for its order, as far as that costs nothing that can be measured. Called by a thread's cache when a magazine
// leaves it, and by the depot.
#pragma once

#include "cache/magazine.h"

namespace folio {

// Reports, as of `function`, and takes out of a waiting magazine: each address that is no object's start, and an object
// freed again after one other of its bin (the fast path finds those with none between); once there is such a one, and
// where `thorough`, all but one of each object that is there more than once.
void validate(BinId bin, Magazine* magazine, bool thorough, const char* function);

// Whether what frees have left in a waiting magazine lies so scattered that it had better go back to its folios, whose
// words hand out neighbours together: handed on as it is, it would scatter the program's next structures over the heap.
// (100,000 objects of 64 bytes that another thread freed at random: a walk over the next list of them took 150 ns a
// node in place of 1.7.) Only of objects so small that several share a page's lines.
bool scattered(BinId bin, Magazine* magazine);

}  // namespace folio
