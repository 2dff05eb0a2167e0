// The depot: for each bin, a lock-free stack of bundles of magazines, for the whole process. Bounded: what is over goes
// back to the folios.
//
// A push and a pop are a compare_exchange and an addition each, for up to kBundleMost + 1 magazines of up to 62
// objects.
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

// Pushes a bundle (its length set), or drains it where the depot is full. Misuse found then is reported as of
// `function`.
void depot_push(BinId bin, Magazine* bundle, const char* function);

// From now on the process has several threads. Before that the depot, which passes objects between them, takes nothing
// in: scattered objects that wait in it would keep pages from being purged.
void depot_set_shared();

// A bundle, or null.
Magazine* depot_pop(BinId bin);

// Drains what no one has touched since the call before the last one, or everything. Returns magazines drained.
unsigned depot_trim(bool all);

// Objects that wait in the depot's magazines of a bin: counted by walking, an estimate under load.
uint64_t depot_objects(BinId bin);

}  // namespace folio
