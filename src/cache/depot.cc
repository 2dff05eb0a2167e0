// Pushes, pops and drains bundles, and keeps a depot's bound.
#include "cache/depot.h"

#include "cache/validate.h"
#include "config/options.h"
#include "sync/relaxed.h"

namespace folio {

namespace {

Magazine* pop(MagazineStack& stack) {
  if (stack.peek_empty()) return nullptr;
  Magazine* bundle = stack.pop();
  if (bundle != nullptr) bundle->forget_stack_link();
  return bundle;
}

// Takes the stack once, as others may push as fast as this drains.
unsigned drain_stack(Depot& depot, BinId bin, MagazineStack& stack) {
  unsigned drained = 0;
  Magazine* next = nullptr;
  for (Magazine* bundle = stack.peek_empty() ? nullptr : stack.pop_all(); bundle != nullptr; bundle = next) {
    next = bundle->stack_link().load(order::relaxed);  // relaxed: the list is ours
    bundle->forget_stack_link();
    depot_count(depot, depot_small(bin), -bundle_bytes(bin, bundle));
    drained += bundle_drain(bin, bundle, "free");
  }
  return drained;
}

// Drains the bundle's magazines whose objects lie scattered, and counts their bytes out. Returns the others, or null.
Magazine* keep_ordered(Depot& depot, BinId bin, Magazine* bundle, const char* function) {
  Magazine *kept = nullptr, *last = nullptr, *gone = nullptr;
  unsigned length = 0;
  int64_t bytes = 0;
  for (Magazine* next = nullptr; bundle != nullptr; bundle = next) {
    next = bundle->next();
    if (scattered(bin, bundle)) {
      bytes += int64_t{bundle->count()} * info_of(bin).size;
      bundle->set_next(gone);
      gone = bundle;
    } else {
      if (last != nullptr) {
        last->set_next(bundle);
      } else {
        kept = bundle;
      }
      last = bundle;
      ++length;
    }
  }
  bundle_drain(bin, gone, function);
  if (bytes != 0) depot_count(depot, depot_small(bin), -bytes);
  if (kept == nullptr) return nullptr;
  last->set_next(nullptr);
  kept->set_bundle_length(length);
  return kept;
}

bool has_room(const Depot& depot, BinId bin, int64_t bytes) {
  const int64_t most = (options.depot << 10) * most_of(depot.cpus.get(), 1);  // without CPU caches as for one
  // With 0 nothing: the count may be below 0, as CPU caches flush what they moved late.
  return most != 0 && depot.shared.get() && depot.held.bytes[depot_small(bin)].get() + bytes <= most;
}

}  // namespace

void depot_push(Depot& depot, BinId bin, Magazine* bundle, int64_t bytes, const char* function) {
  if (!has_room(depot, bin, bytes)) {
    depot_count(depot, depot_small(bin), -bytes);
    bundle_drain(bin, bundle, function);
    return;
  }
  DepotBin& d = depot.bins[own_shard()][index(bin)];
  // A bundle that finds both stacks empty will likely be popped at once, and may be scattered. If others wait, it will
  // wait too, and is put in order.
  if (!d.bundles[0].peek_empty() || !d.bundles[1].peek_empty()) bundle = keep_ordered(depot, bin, bundle, function);
  if (bundle != nullptr) d.bundles[d.recent.get()].push(bundle);
}

void depot_count(Depot& depot, bool small, int64_t bytes) { depot.held.bytes[small].add(bytes); }

void depot_count_anew(Depot& depot) {
  int64_t bytes[2] = {};
  for (unsigned i = 1; i < kBins; ++i) {
    const uint64_t objects = depot_objects(depot, bin_id(i));
    bytes[depot_small(bin_id(i))] += static_cast<int64_t>(objects * info_of(bin_id(i)).size);
  }
  for (unsigned i = 0; i < 2; ++i) depot.held.bytes[i].set(bytes[i]);
}

int64_t bundle_bytes(BinId bin, Magazine* bundle) {
  int64_t objects = 0;
  for (Magazine* m = bundle; m != nullptr; m = m->next()) objects += m->count();
  return objects * info_of(bin).size;
}

Magazine* depot_pop(Depot& depot, BinId bin) {
  if (!depot.shared.get()) return nullptr;  // nothing was pushed before
  return find_in_shards([&depot, bin](unsigned shard) {
    DepotBin& d = depot.bins[shard][index(bin)];
    const uint32_t recent = d.recent.get();
    Magazine* bundle = pop(d.bundles[recent]);
    return bundle != nullptr ? bundle : pop(d.bundles[1 - recent]);
  });
}

unsigned depot_trim(Depot& depot, bool all) {
  unsigned drained = 0;
  const unsigned n = shards.load(order::relaxed) * kBins;  // relaxed: a new one's turn comes
  for (unsigned i = 0; i < n; ++i) {
    const BinId bin = bin_id(i % kBins);
    DepotBin& d = depot.bins[i / kBins][i % kBins];
    const uint32_t recent = d.recent.get();
    drained += drain_stack(depot, bin, d.bundles[1 - recent]);
    if (all) drained += drain_stack(depot, bin, d.bundles[recent]);
    if (!d.bundles[recent].peek_empty()) d.recent.set(1 - recent);
  }
  return drained;
}

unsigned depot_age(Depot& depot, unsigned most) {
  const unsigned n = shards.load(order::relaxed) * kBins;  // relaxed: a new one's turn comes
  unsigned drained = 0;
  for (unsigned i = depot.next_to_age.get(); i < n; ++i) {
    const BinId bin = bin_id(i % kBins);
    DepotBin& d = depot.bins[i / kBins][i % kBins];
    const uint32_t recent = d.recent.get();
    while (drained < most) {
      Magazine* const bundle = pop(d.bundles[1 - recent]);
      if (bundle == nullptr) break;
      depot_count(depot, depot_small(bin), -bundle_bytes(bin, bundle));
      drained += bundle_drain(bin, bundle, "free");
    }
    if (drained >= most) {
      depot.next_to_age.set(i);
      return drained;
    }
    if (!d.bundles[recent].peek_empty()) d.recent.set(1 - recent);
  }
  depot.next_to_age.set(0);
  return drained;
}

uint64_t depot_objects(const Depot& depot, BinId bin) {
  // Others push and pop meanwhile, so links may lead to any magazine: the walk is bounded, and safe as magazines are
  // never unmapped.
  constexpr unsigned kStepsMost = 1u << 16;
  uint64_t objects = 0;
  unsigned steps = 0;
  const unsigned n = 2 * shards.load(order::relaxed);  // relaxed: an estimate
  for (unsigned i = 0; i < n; ++i) {
    Magazine* bundle = depot.bins[i / 2][index(bin)].bundles[i % 2].top();
    while (bundle != nullptr && steps < kStepsMost) {
      for (Magazine* m = bundle; m != nullptr && steps < kStepsMost; m = m->next(), ++steps) objects += m->count();
      bundle = bundle->stack_link().load(order::relaxed);  // relaxed: an estimate
    }
  }
  return objects;
}

}  // namespace folio
