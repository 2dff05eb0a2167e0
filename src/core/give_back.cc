// Purges bins, large and huge objects in turn, in one call or in steps, and collects everything.
#include "core/give_back.h"

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_caches.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/pages.h"

namespace folio {

// The stores bound how many fields and blocks they visit.
size_t purge_beyond_bins(PurgeWhich which, size_t most_bytes) {
  size_t purged = large_purge(process_fields, which != PurgeWhich::kAged, most_bytes);
  if (purged < most_bytes) purged += huge_purge(which != PurgeWhich::kAged, most_bytes - purged);
  return purged;
}

PurgeStepDone purge_step(const PurgeStep& step) {
  PurgeStepDone done = purge_bins_step(process_store, process_store.purged_to, step);
  if (done.purged < step.most_bytes) done.purged += purge_beyond_bins(step.which, step.most_bytes - done.purged);
  return done;
}

size_t purge_everything(PurgeWhich which, size_t most_bytes) {
  return purge_step({which, most_bytes, kWorthAlways, ~0u, true}).purged;
}

size_t purge_some(size_t bytes) {
  const size_t purged = purge_step({PurgeWhich::kAged, bytes, kWorthAlways, kStepChunks, true}).purged;
  return purged < bytes ? purged + purge_everything(PurgeWhich::kAll, bytes - purged) : purged;
}

void empty_shared_caches() {
  cpu_caches_trim(process_caches, true);
  depot_trim(process_caches.depot, true);
}

size_t collect_everything(const char* function) {
  const uint64_t before = page_counts.purged.get();
  if (ThreadCache* cache = thread_cache()) thread_cache_drain(cache, function);
  empty_shared_caches();
  retry_refused(process_store);
  purge_everything(PurgeWhich::kAll, kUnlimited);
  return page_counts.purged.get() - before;
}

}  // namespace folio
