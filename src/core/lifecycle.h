// Start, fork and exit of the process.
#pragma once

#include "base/atomic.h"

namespace folio {

// Reads the options and registers for fork and exit, once. Nothing waits for it: who comes while another thread is at
// it goes on with the defaults.
FOLIO_COLD void start_slow();

enum : uint32_t { kNotStarted = 0, kStarting = 1, kStarted = 2 };
extern Atomic<uint32_t> started;

FOLIO_INLINE void start() {
  // [start] acquire: sees the options; pairs with start_slow. unseen: as there
  if (__builtin_expect(started.load(order::acquire) != kStarted, false)) start_slow();
}

}  // namespace folio
