#include "cache/depot.h"

#include "config/options.h"

namespace folio {

namespace {

alignas(64) constinit Atomic<int64_t> held{0};  // bytes of objects in all bins
constinit Atomic<bool> shared{false};

}  // namespace

constinit DepotBin depot[kBins];

void depot_set_shared() {
  if (!shared.load(order::relaxed)) shared.store(true, order::relaxed);  // relaxed: a hint
}

namespace {

unsigned drain(BinId bin, Magazine* bundle, const char* function) {
  unsigned drained = 0;
  while (bundle != nullptr) {
    Magazine* const next = bundle->next();
    magazine_drain(bin, bundle, function);
    bundle = next;
    ++drained;
  }
  return drained;
}

void touch(DepotBin& d) {
  // Relaxed: a mark for the next trim.
  if (d.idle.load(order::relaxed) != 0) d.idle.store(0, order::relaxed);
}

}  // namespace

unsigned bundle_most(BinId bin) {
  const BinInfo& info = info_of(bin);
  const uint32_t magazine_bytes = info.size * (info.magazine_most == 0 ? 1u : info.magazine_most);
  const uint32_t fit = kBundleBytes / magazine_bytes;
  return fit < 1 ? 1 : fit > kBundleMost ? kBundleMost : fit;
}

void depot_push(BinId bin, Magazine* bundle, int64_t bytes, const char* function) {
  DepotBin& d = depot[index(bin)];
  // Relaxed: a bound that concurrent pushes may pass by a bundle each.
  if (!shared.load(order::relaxed) || held.load(order::relaxed) + bytes > options.depot << 10) {
    depot_count(-bytes);
    drain(bin, bundle, function);
    return;
  }
  touch(d);
  d.bundles.push(bundle);
}

void depot_count(int64_t bytes) { held.fetch_add(bytes, order::relaxed); }  // relaxed: a sum, nothing hangs on it

int64_t bundle_bytes(BinId bin, Magazine* bundle) {
  int64_t objects = 0;
  for (Magazine* m = bundle; m != nullptr; m = m->next()) objects += m->count();
  return objects * info_of(bin).size;
}

Magazine* depot_pop(BinId bin) {
  DepotBin& d = depot[index(bin)];
  if (d.bundles.looks_empty()) return nullptr;
  Magazine* bundle = d.bundles.pop();
  if (bundle == nullptr) return nullptr;
  bundle->forget_stack_link();
  touch(d);
  return bundle;
}

unsigned depot_trim(bool all) {
  unsigned drained = 0;
  for (unsigned i = 1; i < kBins; ++i) {
    DepotBin& d = depot[i];
    if (d.bundles.looks_empty()) continue;
    const uint32_t idle = d.idle.load(order::relaxed) + 1;  // relaxed: a mark
    d.idle.store(idle, order::relaxed);                     // relaxed: a mark
    if (!all && idle < 3) continue;
    while (Magazine* bundle = d.bundles.pop()) {
      bundle->forget_stack_link();
      depot_count(-bundle_bytes(bin_id(i), bundle));
      drained += drain(bin_id(i), bundle, "free");
    }
  }
  return drained;
}

uint64_t depot_objects(BinId bin) {
  // Others push and pop meanwhile, so links may lead anywhere in the magazines: the walk is safe, as they are never
  // unmapped, and bounded.
  constexpr unsigned kStepsMost = 1u << 16;
  uint64_t objects = 0;
  unsigned steps = 0;
  Magazine* bundle = depot[index(bin)].bundles.top();
  while (bundle != nullptr && steps < kStepsMost) {
    for (Magazine* m = bundle; m != nullptr && steps < kStepsMost; m = m->next(), ++steps) objects += m->count();
    bundle = bundle->stack_link().load(order::relaxed);  // relaxed: an estimate
  }
  return objects;
}

}  // namespace folio
