// Validation: checks a magazine that frees have filled, before other threads may take from it, for wrong addresses and
// for objects that lie scattered. Only by checks too cheap to measure. The thread cache validates magazines that leave
// it; the CPU cache and the depot judge which ones go to the folios.
#pragma once

#include "cache/magazine.h"
#include "sync/relaxed.h"

namespace folio {

// Finds what is wrong in a waiting magazine, reports it in the name of `function`, and takes it out:
//   - each address that is not the start of an object;
//   - an object freed twice with one other free of its bin in between (with none, the fast path finds it);
//   - if there is any of these, or with `thorough`: all but one copy of each object that is there more than once.
void validate(BinId bin, Magazine* magazine, bool thorough, const char* function);

// Whether validate() uses vectors of 32 bytes (AVX2) or 16: kWide or kNarrow; before, how often it was called. (Batches
// of 100 to 1000 objects take 0.86 of the instructions and 0.94 to 0.97 of the time.)
inline constexpr int kNarrow = 64, kWide = kNarrow + 1;
extern Hint<int> wide_vectors;

// Whether the objects in a waiting magazine lie so scattered that they should go back to their folios, which hand out
// neighbours together: passed on, the magazine would scatter the program's next structures over the heap. (100,000
// objects of 64 bytes that another thread freed at random: a walk over the next list of them took 150 ns a node in
// place of 1.7.) False for objects above 512 bytes.
bool scattered(BinId bin, Magazine* magazine);

// Whether a list of magazines with `objects` objects may keep more than 1 MiB of pages from being purged, judged by the
// first one, or the first two where that does not show it. (Judged as scattered() does, objects of 16 bytes that are
// freed in pairs in random order kept 20 MiB.)
bool pins_pages(Magazine* list, unsigned objects);

}  // namespace folio
