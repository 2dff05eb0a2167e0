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

size_t dirty_excess() {
  if (options.decay != 0 && timekeeper_runs()) return 0;
  const int64_t dirty = page_counts.dirty.load(order::relaxed);  // relaxed: an estimate
  const int64_t floor = options.dirty_floor << 20;
  if (options.decay != 0 && dirty <= floor) return 0;
  const int64_t live = page_counts.resident.load(order::relaxed) - dirty;  // relaxed: an estimate
  const int64_t quarter = (live + live_huge.load(order::relaxed)) / 4;     // relaxed: as above
  const int64_t bound = options.decay == 0 ? 0 : floor > quarter ? floor : quarter;
  return dirty > bound ? static_cast<size_t>(dirty - bound) : 0;
}

bool purge_pages(void* address, size_t bytes) {
  if (bytes == 0) return true;
  page_counts.purge_calls.fetch_add(1, order::relaxed);  // relaxed: a statistic
  if (!os::purge(address, bytes)) return false;
  page_counts.purged.fetch_add(bytes, order::relaxed);  // relaxed: a statistic
  return true;
}

}  // namespace folio
