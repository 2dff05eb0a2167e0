// The screen: a magazine that frees have filled is looked through before others may take from it, as far as that costs
// nothing that can be measured. Called by a thread's cache when a magazine runs over.
#pragma once

#include "cache/magazine.h"

namespace folio {

// Reports, as of `function`, and takes out of a waiting magazine: an object freed again after one other of its bin (the
// fast path finds those with none between), and an address that is less aligned than every object of the bin.
void screen(BinId bin, Magazine* magazine, const char* function);

}  // namespace folio
