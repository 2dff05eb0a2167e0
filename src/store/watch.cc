#include "store/watch.h"

#include "config/options.h"
#include "space/chunk_table.h"
#include "store/occupancy.h"

namespace folio {

namespace {

constinit Atomic<unsigned> watched{0};  // frees of all bins

}  // namespace

// Relaxed: counts that may lose some, of which nothing else hangs; and an entry that is right either way.
bool watch_wanted(BinId bin) {
  const auto most = static_cast<uint64_t>(options.watch);
  return bins[index(bin)].watched.load(order::relaxed) < most && watched.load(order::relaxed) < kWatchShares * most;
}

void watch_free(BinId bin, const void* address) {
  // Relaxed: as above.
  Atomic<unsigned>& mine = bins[index(bin)].watched;
  mine.store(mine.load(order::relaxed) + 1, order::relaxed);
  watched.store(watched.load(order::relaxed) + 1, order::relaxed);
  // Relaxed: any value it has had leads to the bin.
  if (!watch_wanted(bin)) chunk_entry(address).store(static_cast<uint16_t>(index(bin) * kTopBytes), order::relaxed);
}

}  // namespace folio
