// Counts watched frees, and ends a chunk's watch.
#include "store/watch.h"

#include "space/chunk_table.h"
#include "store/occupancy.h"

namespace folio {

void watch_free(Store& store, BinId bin, const void* address, unsigned frees) {
  store.of(bin).watched.add(frees);
  store.watched.add(frees);
  if (watch_wanted(store, bin)) return;
  // Relaxed: either value leads to the bin. Not a store: since the free the chunk may have left its bin.
  auto watched = static_cast<uint16_t>((kCodeWatched + index(bin)) * kCursorBytes);
  chunk_entry(address).compare_exchange(watched, static_cast<uint16_t>(index(bin) * kCursorBytes), order::relaxed);
}

}  // namespace folio
