// Counts watched frees, and ends a chunk's watch.
#include "store/watch.h"

#include "config/options.h"
#include "space/chunk_table.h"
#include "store/occupancy.h"

namespace folio {

// Relaxed: counts that may lose some, of which nothing else hangs; and an entry that is right either way.
bool watch_wanted(const Store& store, BinId bin) {
  const auto most = static_cast<uint64_t>(options.watch);
  return store.of(bin).watched.load(order::relaxed) < most && store.watched.load(order::relaxed) < kWatchShares * most;
}

void watch_free(Store& store, BinId bin, const void* address) {
  // Relaxed: as above.
  Atomic<unsigned>& mine = store.of(bin).watched;
  mine.store(mine.load(order::relaxed) + 1, order::relaxed);
  store.watched.store(store.watched.load(order::relaxed) + 1, order::relaxed);
  // Relaxed: any value it has had leads to the bin.
  if (!watch_wanted(store, bin))
    chunk_entry(address).store(static_cast<uint16_t>(index(bin) * kCursorBytes), order::relaxed);
}

}  // namespace folio
