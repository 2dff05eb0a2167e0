// Start, fork and exit of the process.
#pragma once

#include "core/seam.h"

namespace folio {

// Reads the options and registers for fork and exit, once. Nothing waits for it: a thread that comes meanwhile goes on
// with the defaults. Both functions return whether the seam is not open (seam.h).
FOLIO_COLD bool start_slow();

FOLIO_INLINE bool start() {
  // [start] acquire: sees the options; pairs with start_slow. unseen: as there
  return __builtin_expect(seam_mode.load(order::acquire) != kOpen, false) && start_slow();
}

}  // namespace folio
