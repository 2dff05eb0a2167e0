// The invariants of descriptor.h and hints.h, looked at from outside. Only tests link it.
#pragma once

#include "store/store.h"

namespace folio {

// Validity check, with nothing in flight: true if every invariant of descriptor.h and hints.h holds.
bool check_bin(Store& store, BinId bin);

}  // namespace folio
