// The screen: a magazine that frees have filled is looked through before others may take from it, as far as that costs
// nothing that can be measured. Called by a thread's cache when a magazine leaves it.
#pragma once

#include "cache/magazine.h"

namespace folio {

// Reports, as of `function`, and takes out of a waiting magazine: each address that is no object's start, and an object
// freed again after one other of its bin (the fast path finds those with none between); once there is such a one, and
// where `thorough`, all but one of each object that is there more than once.
void screen(BinId bin, Magazine* magazine, bool thorough, const char* function);

}  // namespace folio
