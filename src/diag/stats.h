// Statistics: derived on demand from words, magazines and a few counters; nothing is counted on the fast path for them.
// Reads every layer that api/ rests on; none of them includes it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "config/size_classes.h"

namespace folio {

struct BinStats {
  uint64_t chunks;
  uint64_t taken;     // objects: live and cached
  uint64_t cached;    // objects
  uint64_t resident;  // bytes that may be resident
  uint64_t dirty;     // of these, bytes of pages that no taken object touches
};
// What the magazines that threads use hold of each bin: looked at once for all bins, as that takes system calls. No
// more than this lies on the stack, which may be a small one.
struct InThreads {
  InThreads();
  uint64_t objects[kBins] = {};
};
BinStats bin_stats(BinId bin, const InThreads& in_threads = InThreads());

struct Totals {
  uint64_t live, cached, fragmented, dirty, resident, huge_live, metadata, reserved, chunks, threads;
  uint64_t purged, purge_calls, busy_sections;
};
Totals totals(const InThreads& in_threads = InThreads());

// One screen of text, or one JSON object, in pieces.
using Write = void(void* context, const char* text, size_t length);
void write_text(Write* write, void* context);
void write_json(Write* write, void* context);

// For `stats:exit`.
void print_at_exit();

}  // namespace folio
