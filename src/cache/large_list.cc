// The budget: how many bytes of large objects a CPU cache keeps, and of others while the process has one thread.
#include "cache/large_list.h"

#include "space/pages.h"
#include "store/misuse.h"

namespace folio {

// resident bytes / 8 / caches, but at least `least` and at most kLargeShares * `least`. (Two threads that replace 300
// objects of up to 200 KB each take 0.20 s with 1 MiB, 0.13 with 2, 0.10 with 4, 0.06 with 16, in 23.7, 24.4, 25.0 and
// 22.6 MiB: a miss here goes to words that all CPUs share.)
uint64_t LargeList::budget_of_one(uint64_t least, unsigned caches) {
  constexpr uint64_t kLargeShares = 4;
  const int64_t resident = page_counts.resident.get();
  const uint64_t part = resident <= 0 ? 0 : static_cast<uint64_t>(resident) / 8 / (caches == 0 ? 1 : caches);
  return part < least ? least : part < kLargeShares * least ? part : kLargeShares * least;
}

void give_parked(void* parked, LargeNear* near) {
  if (!large_give(parked, near)) report_large_twice(parked);
}

}  // namespace folio
