// The depot: for each bin and shard (shards.h) bundles of magazines, for the whole process, in two lock-free stacks:
// one for what was pushed since the last tick, one for what waits longer. A tick drains the second, and the stacks
// change roles. So bundles that nobody needs are drained, also those that lie below bundles in constant use.
//
// Bounded: by the option; what is over goes back to the folios. While a housekeeper sees to the ticks larger objects
// may be a quarter of what is live, or kTolerated: a program that passes objects between threads has them either in use
// or here, in turns, and the ticks see to it that they do not stay.
//
// In order: while a bundle waits for a bin, magazines that frees have left scattered (validate.h) go to the folios
// instead. One alone is passed on as it is: where threads take as fast as others give, no order comes of the detour.
// (With all scattered magazines sent home, also from the CPU caches, eight pairs of producers and consumers who free at
// random took 1.7 times as long.)
//
// A push and a pop are one compare_exchange each, for a whole bundle. The number of bytes in the depot is one counter
// for the whole process, so pushes and pops do not change it: each CPU cache adds up what it moved and flushes the sum
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

// One line a bin and shard: the head is what threads meet on.
struct alignas(64) DepotBin {
  MagazineStack bundles[2];
  Hint<uint32_t> recent;  // which of them is pushed to
};
extern DepotBin depot[kShardsMost][kBins];

// Pushes a bundle (its length set) of `bytes` of objects, or drains it where the depot is full. Misuse found then is
// reported as of `function`. The caller then counts the bytes as gone in, also where they were drained.
void depot_push(BinId bin, Magazine* bundle, int64_t bytes, const char* function);

// From now on the process has several threads. Before that the depot, which passes objects between them, takes nothing
// in: scattered objects that wait in it would keep pages from being purged.
void depot_set_shared();
bool depot_is_shared();  // whether it has

// A bundle, or null. The caller counts its bytes as gone out.
Magazine* depot_pop(BinId bin);

// Counts bytes that went into the depot, or out of it where negative. Until then the bound does not know them: a CPU
// cache flushes its sum when that exceeds kAccountStep. Small and larger objects are counted apart.
void depot_count(bool small, int64_t bytes);
inline bool depot_small(BinId bin) { return info_of(bin).size < kManyLargest; }
inline constexpr int64_t kAccountStep = int64_t{128} << 10;
// More seldom where there are many CPUs: the sum is one line, and sharding it would let it drift.
inline int64_t account_step() {
  return shards.load(order::relaxed) == 1 ? kAccountStep : 8 * kAccountStep;  // relaxed: a hint
}

// Bytes of the objects in a bundle.
int64_t bundle_bytes(BinId bin, Magazine* bundle);

// Drains what has waited since the call before, or everything. Returns magazines drained.
unsigned depot_trim(bool all);

// A step of depot_trim(false), for who has little time: ends after about `most` magazines, and then returns no less;
// the next call goes on there. A bundle is drained whole. (depot_trim takes each stack once, so that it ends however
// fast others push; this ends by its count.)
unsigned depot_age(unsigned most);

// Objects that wait in the depot's magazines of a bin: counted by walking, an estimate under load.
uint64_t depot_objects(BinId bin);

}  // namespace folio
