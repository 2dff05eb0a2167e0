// Purges bins, large and huge objects in turn, in one call or in steps, and collects everything.
#include "core/give_back.h"

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_caches.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/pages.h"

namespace folio {

namespace {

constexpr size_t kUnlimited = ~size_t{0};

}  // namespace

// The stores bound the looks themselves.
size_t purge_beyond_bins(PurgeWhich which, size_t most_bytes) {
  size_t purged = large_purge(which != PurgeWhich::kAged, most_bytes);
  if (purged < most_bytes) purged += huge_purge(which != PurgeWhich::kAged, most_bytes - purged);
  return purged;
}

size_t purge_everything(PurgeWhich which, size_t most_bytes, unsigned worth_shift) {
  size_t purged = purge_bins(process_store, which, most_bytes, worth_shift);
  return purged < most_bytes ? purged + purge_beyond_bins(which, most_bytes - purged) : purged;
}

size_t purge_some(size_t bytes) {
  static constinit PurgeRound round;
  size_t purged =
      purge_bins_step(process_store, round, {PurgeWhich::kAged, bytes, kChunkShift, kStepChunks, true}).purged;
  if (purged < bytes) purged += purge_beyond_bins(PurgeWhich::kAged, bytes - purged);
  if (purged >= bytes) return purged;
  purged += purge_bins_step(process_store, round, {PurgeWhich::kAll, bytes - purged, kChunkShift, ~0u, true}).purged;
  return purged < bytes ? purged + purge_beyond_bins(PurgeWhich::kAll, bytes - purged) : purged;
}

size_t collect_everything(const char* function) {
  const uint64_t before = page_counts.purged.get();
  if (ThreadCache* cache = thread_cache()) thread_cache_drain(cache, function);
  cpu_caches_trim(true);
  depot_trim(true);
  retry_refused(process_store);
  purge_everything(PurgeWhich::kAll, kUnlimited);
  huge_unmap_free();
  return page_counts.purged.get() - before;
}

}  // namespace folio
