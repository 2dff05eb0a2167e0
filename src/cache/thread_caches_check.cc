// Counts the objects in one thread's magazine in use. Only tests link it.
#include "cache/thread_caches.h"

#include "os/os.h"

namespace folio {

uint64_t thread_cache_objects(const ThreadCache* cache, BinId bin) {
  // Relaxed: what is read there counts only if its owner is this cache. The lowest bit is the mark of a search for the
  // cache's thread.
  const auto word = reinterpret_cast<uintptr_t>(cache->cursors.load(order::relaxed));
  const auto* const cursors = reinterpret_cast<const ThreadCursors*>(word & ~uintptr_t{1});
  if (cursors == nullptr) return 0;
  const Slot* cursor = nullptr;
  const ThreadCache* owner = nullptr;
  if (cursors == &thread_cursors) {
    cursor = thread_cursors.cursor[index(bin)];
    owner = thread_cursors.owner;
  } else if (!os::peek(&cursor, &cursors->cursor[index(bin)], sizeof cursor) ||
             !os::peek(&owner, &cursors->owner, sizeof owner)) {
    return 0;
  }
  if (owner != cache || closed(cursor)) return 0;
  const unsigned at = reinterpret_cast<uintptr_t>(cursor) % kMagazineBytes / sizeof(Slot);
  return Magazine::of(cursor)->bottom() - at;
}

}  // namespace folio
