// Checks the invariants of descriptor.h and hints.h. Only tests link it.
#pragma once

#include "store/store.h"

namespace folio {

// True if every invariant holds for the bin's chunks. Nothing may be in flight.
bool check_bin(Store& store, BinId bin);

}  // namespace folio
