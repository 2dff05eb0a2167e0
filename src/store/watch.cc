// Counts watched frees, and ends a chunk's watch.
#include "store/watch.h"

#include "config/options.h"
#include "space/chunk_table.h"
#include "store/occupancy.h"

namespace folio {

bool watch_wanted(const Store& store, BinId bin) {
  const auto most = static_cast<uint64_t>(options.watch);
  return store.of(bin).watched.get() < most && store.watched.get() < kWatchShares * most;
}

bool watch_counts_each() {
  constexpr int64_t kCoarse = 64;
  return options.watch < kCoarse * int64_t{kWatchCountEvery};
}

void watch_free(Store& store, BinId bin, const void* address, unsigned frees) {
  store.of(bin).watched.add(frees);
  store.watched.add(frees);
  if (watch_wanted(store, bin)) return;
  // Relaxed: either value leads to the bin. Not a store: since the free the chunk may have left its bin.
  auto watched = static_cast<uint16_t>((kCodeWatched + index(bin)) * kCursorBytes);
  chunk_entry(address).compare_exchange(watched, static_cast<uint16_t>(index(bin) * kCursorBytes), order::relaxed);
}

}  // namespace folio
