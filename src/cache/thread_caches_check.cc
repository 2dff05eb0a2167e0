// What one thread's magazine in use holds. For tests, which alone link it.
#include "cache/thread_caches.h"

#include "os/os.h"

namespace folio {

uint64_t thread_cache_objects(const ThreadCache* cache, BinId bin) {
  // Relaxed: what is read there counts only if the owner is right. The odd bit says that its thread is looked for.
  const auto word = reinterpret_cast<uintptr_t>(cache->tops.load(order::relaxed));
  const auto* const tops = reinterpret_cast<const ThreadTops*>(word & ~uintptr_t{1});
  if (tops == nullptr) return 0;
  const Slot* top = nullptr;
  const ThreadCache* owner = nullptr;
  if (tops == &thread_tops) {
    top = thread_tops.top[index(bin)];
    owner = thread_tops.owner;
  } else if (!os::peek(&top, &tops->top[index(bin)], sizeof top) || !os::peek(&owner, &tops->owner, sizeof owner)) {
    return 0;
  }
  if (owner != cache || closed(top)) return 0;
  const unsigned at = reinterpret_cast<uintptr_t>(top) % kMagazineBytes / sizeof(Slot);
  return Magazine::of(top)->bottom() - at;
}

}  // namespace folio
