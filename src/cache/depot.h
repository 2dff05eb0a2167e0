// The depot: for each bin, a lock-free stack of bundles of magazines, for the whole process. Bounded: what is over goes
// back to the folios.
//
// A push and a pop are a compare_exchange each, for up to kBundleMost + 1 magazines of up to 62 objects. What they add
// to and take from the bytes in the depot is told apart, and late, by the CPU caches: a count for the whole process is
// one line on which all threads would meet at each bundle.
#pragma once

#include <stdint.h>

#include "cache/magazine.h"

namespace folio {

inline constexpr unsigned kBundleMost = 8;

// How many magazines of a bin travel together: as many as make about kBundleBytes.
unsigned bundle_most(BinId bin);
inline constexpr uint32_t kBundleBytes = 256 * 1024;

// One line a bin: the head is what threads meet on.
struct alignas(64) DepotBin {
  MagazineStack bundles;
  Atomic<uint32_t> idle;  // trims since it was last used
};
extern DepotBin depot[kBins];

// Pushes a bundle (its length set) of `bytes` of objects, or drains it where the depot is full. Misuse found then is
// reported as of `function`. The caller counts the bytes as gone in, also where they were drained.
void depot_push(BinId bin, Magazine* bundle, int64_t bytes, const char* function);

// From now on the process has several threads. Before that the depot, which passes objects between them, takes nothing
// in: scattered objects that wait in it would keep pages from being purged.
void depot_set_shared();

// A bundle, or null. The caller counts its bytes as gone out.
Magazine* depot_pop(BinId bin);

// Counts bytes that went into the depot, or out of it where negative. Until then they are missing in its bound: a CPU
// cache tells when they are more than kAccountStep.
void depot_count(int64_t bytes);
inline constexpr int64_t kAccountStep = 128 * 1024;

// Bytes of the objects in a bundle.
int64_t bundle_bytes(BinId bin, Magazine* bundle);

// Drains what no one has touched since the call before the last one, or everything. Returns magazines drained.
unsigned depot_trim(bool all);

// Objects that wait in the depot's magazines of a bin: counted by walking, an estimate under load.
uint64_t depot_objects(BinId bin);

}  // namespace folio
