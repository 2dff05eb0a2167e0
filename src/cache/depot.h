// Depot: bundles of magazines for all CPUs. For each bin and shard (shards.h) two lock-free stacks: one of bundles that
// were pushed since the last tick, one of those that have waited longer. A tick drains the second, and the stacks swap
// roles. So bundles that nobody needs are drained, also those below bundles in constant use. Zero-filled it is a valid,
// empty depot. The process has one (process_caches, cpu_cache.h).
//
// Bound, of small and of larger objects (depot_small) each: the option `depot` for each CPU cache, as more CPUs pass on
// more; all shards have it together. A bundle beyond it goes to the folios. What waits here keeps its pages from being
// purged, and from other bins. A larger bound makes only those programs faster that write to nothing of what they pass
// between threads (docs/decisions.md).
//
// Order: while a bundle of the bin waits, scattered magazines (validate.h) go to the folios instead. If none waits, a
// bundle is pushed as it is: where threads take as fast as others give, the detour brings no order. (With all scattered
// magazines sent to the folios, also from the CPU caches, eight pairs of producers and consumers who free at random
// took 1.7 times as long.)
//
// A push or a pop of a bundle is one compare_exchange. The depot's bytes are counted on a line that all CPUs share, so
// pushes and pops leave it alone: each CPU cache adds up what it moved and flushes the sum at kAccountStep.
#pragma once

#include <stdint.h>

#include "cache/magazine.h"
#include "cache/shards.h"
#include "sync/relaxed.h"

namespace folio {

// A CPU cache keeps of a bin up to kBundleMost magazines and up to bundle_objects objects, about kBundleBytes. The
// magazine that goes beyond makes all of them a bundle. (While the process has one thread, the bound is half of
// the cache's budget, however many objects that is.)
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

// A cache line per bin and shard, since all threads write the heads.
struct alignas(64) DepotBin {
  MagazineStack bundles[2];
  Hint<uint32_t> recent;  // which of them is pushed to
};
// What all threads only read lies apart from what they write.
struct Depot {
  DepotBin bins[kShardsMost][kBins];
  struct alignas(64) Held {
    Counter<int64_t> bytes[2];  // by depot_small: of larger objects, of small ones
  } held;
  alignas(64) Hint<bool> shared;  // whether depot_set_shared was called
  Counter<unsigned> cpus;         // how many CPUs have a cache: the bound grows with them
  Hint<unsigned> next_to_age;     // where depot_age goes on; simultaneous calls do no harm
};

// Pushes a bundle (its length set) of `bytes` of objects, or drains it, or its scattered magazines; misuse found then
// is reported in the name of `function`. What is drained is counted out here, so the caller counts all bytes in.
void depot_push(Depot& depot, BinId bin, Magazine* bundle, int64_t bytes, const char* function);

// Opens the depot, when the process has a second thread. Before that it has nobody to pass objects to, and scattered
// objects that wait in it would keep pages from being purged.
inline void depot_set_shared(Depot& depot) {
  if (!depot.shared.get()) depot.shared.set(true);
}

// Pops a bundle, or returns null. The caller counts its bytes out.
Magazine* depot_pop(Depot& depot, BinId bin);

// Counts bytes into the depot, or, if negative, out of it. A CPU cache does so when its own sum reaches account_step():
// until then the bound does not see these bytes.
void depot_count(Depot& depot, bool small, int64_t bytes);
// In the child of a fork that is alone: counts what is there, as far as depot_objects walks, since other threads had
// pushed or popped and not counted yet. (With 3 MiB of objects of 8 bytes 0.2 ms, of 64 bytes no difference.)
void depot_count_anew(Depot& depot);
inline bool depot_small(BinId bin) { return info_of(bin).size < kManyLargest; }
inline constexpr int64_t kAccountStep = int64_t{128} << 10;
// Less often with many CPUs, as the counter is one line. (Sharded it would drift.)
inline int64_t account_step() {
  return shards.load(order::relaxed) == 1 ? kAccountStep : 8 * kAccountStep;  // relaxed: a hint
}

// Bytes of the objects in a bundle.
int64_t bundle_bytes(BinId bin, Magazine* bundle);

// Drains what has waited since the call before, or everything. Returns how many magazines.
unsigned depot_trim(Depot& depot, bool all);

// A step of depot_trim(false), for the program's calls. It ends with the bundle that makes it `most` magazines, and the
// next call goes on there. Returns how many it drained: fewer than `most` at the end of a round. (depot_trim takes each
// stack once, so that it ends however fast others push; this ends by its count.)
unsigned depot_age(Depot& depot, unsigned most);

// How many objects of the bin wait in the depot: counted by a walk, an estimate under load.
uint64_t depot_objects(const Depot& depot, BinId bin);

}  // namespace folio
