// Keeps parked large objects in the thread's list, within its claims.
#include "cache/thread_large.h"

#include "cache/cpu_cache.h"
#include "cache/thread_budget.h"

namespace folio {

bool thread_may_keep_large() { return cpu_cache_work == 1; }

bool thread_keep_large(LargeList& list, void* parked, unsigned granules, bool* gone) {
  const uint64_t bytes = uint64_t{granules} << kGranuleShift;
  *gone = false;
  if (!list.wanted || granules > LargeList::kGranulesMost || process_caches.sparing.get()) return false;
  while (list.bytes + bytes > list.budget && list.budget < kThreadLargeMost) {
    const uint64_t more = thread_budget_claim_large();
    if (more == 0) break;
    list.budget += more;
  }
  if (bytes > list.budget) return false;
  while (list.used == ~uint64_t{0} || list.bytes + bytes > list.budget) {
    list.wanted = false;
    unsigned n;
    void* const oldest = list.remove_oldest(&n);
    if (!cpu_cache_put_large(process_caches, oldest, n)) *gone = true;
  }
  list.keep(parked, granules);
  return true;
}

void* thread_find_large(LargeList& list, unsigned granules) {
  list.wanted = true;
  return list.used == 0 || granules > LargeList::kGranulesMost ? nullptr : list.find(granules);
}

unsigned thread_release_large(LargeList& list, LargeTo where) {
  if (list.budget == 0) return 0;  // was never used
  const CpuCacheWork work;
  unsigned released = 0;
  for (; list.used != 0; ++released) {
    unsigned n;
    void* const object = list.remove_oldest(&n);
    where == LargeTo::kFields ? give_parked(object) : static_cast<void>(cpu_cache_put_large(process_caches, object, n));
  }
  const uint64_t claimed = list.budget;
  list = LargeList{};  // what a thread that is gone has left half changed, too
  thread_budget_return_large(claimed);
  return released;
}

void thread_sweep_large(LargeList& list) {
  if (list.budget != 0 && ++list.idle >= 2 && cpu_cache_work == 0) thread_release_large(list, LargeTo::kCpuCache);
}

}  // namespace folio
