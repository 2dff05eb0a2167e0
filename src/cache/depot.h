// A depot: for each bin and shard (shards.h) bundles of magazines, for all CPUs, in two lock-free stacks: one for what
// was pushed since the last tick, one for what waits longer. A tick drains the second, and the stacks change roles. So
// bundles that nobody needs are drained, also those that lie below bundles in constant use. The process has one
// (process_caches, cpu_cache.h). Zero-filled it is a valid, empty depot.
//
// Bounded by the option `depot`: a bundle beyond goes back to the folios. While a housekeeper runs the ticks, the bound
// of larger objects is at least a quarter of what is live, and kTolerated: in a program that passes objects between
// threads these are in use or here, in turns, and the ticks drain what stays.
//
// In order: while a bundle of the bin waits, scattered magazines (validate.h) go to the folios instead. Where none
// waits, a bundle is passed on as it is: where threads take as fast as others give, the detour brings no order. (With
// all scattered magazines sent to the folios, also from the CPU caches, eight pairs of producers and consumers who free
// at random took 1.7 times as long.)
//
// A push and a pop are one compare_exchange each, for a whole bundle. The number of bytes in the depot is one counter
// for the whole depot, so pushes and pops do not change it: each CPU cache adds up what it moved and flushes the sum
// at kAccountStep.
#pragma once

#include <stdint.h>

#include "cache/magazine.h"
#include "cache/shards.h"
#include "sync/relaxed.h"

namespace folio {

// A CPU cache keeps up to kBundleMost magazines of a bin and up to bundle_objects of its objects, about kBundleBytes.
// The magazine that goes beyond makes them all a bundle. (While the process has one thread it keeps up to kBundleBytes,
// however many that are.)
inline constexpr unsigned kBundleMost = 8;
inline constexpr uint32_t kBundleBytes = 256 * 1024;
inline constexpr unsigned kBundleObjects = kBundleMost * kMagazineUsual;
struct BundleTable {
  uint16_t most[kBins];  // a table: a division took a tenth of a slow free
};
constexpr BundleTable make_bundle_table() {
  BundleTable table{};
  for (unsigned i = 1; i < kBins; ++i) {
    const BinInfo& info = info_of(bin_id(i));
    const uint32_t fit = kBundleBytes / info.size, most = fit < kBundleObjects ? fit : kBundleObjects;
    table.most[i] = static_cast<uint16_t>(most < info.magazine_most ? info.magazine_most : most);
  }
  return table;
}
inline constexpr BundleTable kBundles = make_bundle_table();
constexpr unsigned bundle_objects(BinId bin) { return kBundles.most[index(bin)]; }

// A cache line for each bin and shard, since all threads write the heads.
struct alignas(64) DepotBin {
  MagazineStack bundles[2];
  Hint<uint32_t> recent;  // which of them is pushed to
};
// What all threads read lies apart from what they write.
struct Depot {
  DepotBin bins[kShardsMost][kBins];
  struct alignas(64) Held {
    Counter<int64_t> bytes[2];  // of objects: of larger ones, of small ones
  } held;
  alignas(64) Hint<bool> shared;  // whether depot_set_shared was called
  Hint<unsigned> next_to_age;     // where depot_age goes on; simultaneous calls do no harm
};

// Pushes a bundle (its length set) of `bytes` of objects, or drains it where the depot is full. Misuse found then is
// reported as of `function`. The caller then counts the bytes as gone in, also where they were drained.
void depot_push(Depot& depot, BinId bin, Magazine* bundle, int64_t bytes, const char* function);

// Called when the process has a second thread. Before that the depot, which passes objects between threads, takes
// nothing in: scattered objects that wait in it would keep pages from being purged.
inline void depot_set_shared(Depot& depot) {
  if (!depot.shared.get()) depot.shared.set(true);
}

// A bundle, or null. The caller counts its bytes as gone out.
Magazine* depot_pop(Depot& depot, BinId bin);

// Counts bytes that went into the depot, or out of it where negative; small and larger objects apart. A CPU cache calls
// it when its own sum exceeds kAccountStep: until then the bound does not include these bytes.
void depot_count(Depot& depot, bool small, int64_t bytes);
inline bool depot_small(BinId bin) { return info_of(bin).size < kManyLargest; }
inline constexpr int64_t kAccountStep = int64_t{128} << 10;
// More seldom where there are many CPUs: the sum is one line, and sharding it would let it drift.
inline int64_t account_step() {
  return shards.load(order::relaxed) == 1 ? kAccountStep : 8 * kAccountStep;  // relaxed: a hint
}

// Bytes of the objects in a bundle.
int64_t bundle_bytes(BinId bin, Magazine* bundle);

// Drains what has waited since the call before, or everything. Returns magazines drained.
unsigned depot_trim(Depot& depot, bool all);

// A step of depot_trim(false), for the program's calls: ends after about `most` magazines, and then returns at least
// `most`; the next call goes on there. A bundle is drained whole. (depot_trim takes each stack once, so that it ends
// however fast others push; this ends by its count.)
unsigned depot_age(Depot& depot, unsigned most);

// Objects that wait in the depot's magazines of a bin: counted by walking, an estimate under load.
uint64_t depot_objects(const Depot& depot, BinId bin);

}  // namespace folio
