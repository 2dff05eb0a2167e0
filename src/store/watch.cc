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

void watch_free(Store& store, BinId bin, const void* address) {
  Hint<unsigned>& mine = store.of(bin).watched;
  mine.set(mine.get() + 1);
  store.watched.set(store.watched.get() + 1);
  // Relaxed: any value that the entry has had leads to the bin.
  if (!watch_wanted(store, bin))
    chunk_entry(address).store(static_cast<uint16_t>(index(bin) * kCursorBytes), order::relaxed);
}

}  // namespace folio
