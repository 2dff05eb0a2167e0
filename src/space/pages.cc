#include "space/pages.h"

#include "config/options.h"
#include "os/os.h"

namespace folio {

alignas(64) constinit PageCounts page_counts;

namespace {

constinit Atomic<bool> timekeeper{false};
constinit Atomic<int64_t> live_huge{0};

}  // namespace

void set_timekeeper(bool runs) { timekeeper.store(runs, order::relaxed); }  // relaxed: a hint
bool timekeeper_runs() { return timekeeper.load(order::relaxed); }          // relaxed: a hint

// relaxed: an estimate
void set_live_huge(size_t bytes) { live_huge.store(static_cast<int64_t>(bytes), order::relaxed); }

void cap_live_huge(size_t bytes) {
  const auto cap = static_cast<int64_t>(bytes);
  if (live_huge.load(order::relaxed) > cap) live_huge.store(cap, order::relaxed);  // relaxed: an estimate
}

size_t dirty_excess() {
  if (options.decay != 0 && timekeeper_runs()) return 0;
  const int64_t dirty = page_counts.dirty.load(order::relaxed);  // relaxed: an estimate
  const int64_t floor = options.dirty_floor << 20;
  if (options.decay != 0 && dirty <= floor) return 0;
  if (options.decay == 0) return dirty > 0 ? static_cast<size_t>(dirty) : 0;
  // Relaxed: estimates.
  const int64_t live = page_counts.resident.load(order::relaxed) - dirty + live_huge.load(order::relaxed);
  const int64_t large = page_counts.dirty_large.load(order::relaxed);
  const int64_t most = 2 * live < kLargeTolerated ? 2 * live : kLargeTolerated;
  const int64_t tolerated = large < most ? large : most;
  const int64_t rest = tolerated > 0 ? dirty - tolerated : dirty;
  const int64_t bound = floor > live / 4 ? floor : live / 4;
  return rest > bound ? static_cast<size_t>(rest - bound) : 0;
}

bool purge_pages(void* address, size_t bytes) {
  if (bytes == 0) return true;
  page_counts.purge_calls.fetch_add(1, order::relaxed);  // relaxed: a statistic
  if (!os::purge(address, bytes)) return false;
  page_counts.purged.fetch_add(bytes, order::relaxed);  // relaxed: a statistic
  return true;
}

}  // namespace folio
