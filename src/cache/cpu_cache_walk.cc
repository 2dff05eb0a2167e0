// Walks over all CPU caches, in a fork's child and for statistics; and their sparing.
#include "cache/cpu_cache.h"

#include "os/os.h"

namespace folio {

namespace {

// Sums what `of` says of each cache.
template <typename Of>
uint64_t sum(const CpuCaches& caches, Of of) {
  uint64_t all = 0;
  for (auto& entry : caches.of_cpu) {
    const CpuCache* cache = entry.load(order::acquire);  // [cpu-cache] acquire: pairs with make_cache
    if (cache != nullptr) all += of(*cache);
  }
  return all;
}

}  // namespace

void cpu_caches_after_fork(CpuCaches& caches, Fields& fields, bool alone) {
  if (!alone) return;
  for (auto& entry : caches.of_cpu) {
    // [cpu-cache] acquire: pairs with make_cache. unseen: the child of a fork has one thread
    CpuCache* cache = entry.load(order::acquire);
    if (cache == nullptr) continue;
    cache->large = LargeList{};
    cache->to_depot[0] = cache->to_depot[1] = 0;
    if (!cache->section.held()) continue;
    // The lists may be half changed, and cannot be checked: what they hold is lost, at most the budget.
    cache->bytes = 0;
    for (CpuList& list : cache->lists) list.clear();
    cache->section.forget_holder();
  }
  depot_count_anew(caches.depot);
  large_give_parked(fields);
}

uint64_t cpu_caches_objects(const CpuCaches& caches, BinId bin) {
  return sum(caches, [bin](const CpuCache& cache) -> uint64_t {
    return cache.lists[index(bin)].objects.load(order::relaxed);  // relaxed: a statistic
  });
}

void cpu_caches_spare(CpuCaches& caches, bool spare) {
  if (caches.sparing.get() != spare) caches.sparing.set(spare);
}

uint64_t cpu_caches_pin(const CpuCaches& caches) {
  return sum(caches, [](const CpuCache& cache) {
    uint64_t bytes = 0;
    for (unsigned i = 1; i < kBins; ++i) {
      const uint64_t objects = cache.lists[i].objects.load(order::relaxed);  // relaxed: an estimate
      bytes += objects * (info_of(bin_id(i)).size + os::page_bytes());
    }
    return bytes;
  });
}

uint64_t cpu_caches_busy(const CpuCaches& caches) {
  return sum(caches, [](const CpuCache& cache) { return cache.busy.load(order::relaxed); });  // relaxed: a statistic
}

}  // namespace folio
