// The chunks of a cluster (space/chunks.h) as bins have them: what one huge page may hold is made huge, purged or
// collapsed together.
#pragma once

#include "config/options.h"
#include "space/chunks.h"
#include "space/huge_pace.h"
#include "space/pages.h"
#include "space/room.h"
#include "store/descriptor.h"
#include "store/store.h"

namespace folio {

// Calls visit(descriptor) for each chunk of the cluster that a bin has, by address, until it returns false. Returns
// how many were visited. A chunk that leaves its bin meanwhile does no harm: its descriptor stays, with all objects
// taken.
template <class Visit>
unsigned visit_cluster(char* chunk, Visit&& visit) {
  Window* const window = window_of(chunk);
  char* const start = cluster_start(chunk);
  unsigned visited = 0;
  for (unsigned i = 0; window != nullptr && i < kClusterChunks; ++i) {
    // The code first, as in chunk_in.
    const unsigned code = chunk_code_inside(start + i * kChunkBytes);
    if (code == kCodeNone || code >= kBins) continue;
    // [descriptor] acquire: pairs with set_chunk.
    auto* const d = static_cast<Descriptor*>(window->descriptor[window_slot(start) + i].load(order::acquire));
    if (d == nullptr || index(d->bin) != code) continue;
    ++visited;
    if (!visit(*d)) break;
  }
  return visited;
}

// Notes whether a take is for an object that grows; true if it is, as most are. Reset here, else it would stay in a
// fork's child; counted, as one realloc among seven mallocs of sparse objects made their chunks huge; and not only
// counted, as objects that grow and are freed by turns did so for the sparse ones between that stay.
inline bool note_growth(Bin& b) {
  constexpr unsigned kGrownLeast = 6, kGrownMost = 8;
  const unsigned before = b.grown.get();
  const bool grows = b.growing.get() && b.growing.swap(false);
  const unsigned now = grows ? before + (before < kGrownMost) : before - (before != 0);
  if (now != before) b.grown.set(static_cast<uint8_t>(now));
  return grows && now >= kGrownLeast;
}

// Whether a new chunk of a bin that has `full` ones may be part of a huge page. With kMany, as it is at most a quarter
// more than the bin uses. With kSome, while all bins together have free no more than 1/2^kFreeShift of what is live:
// they fill theirs one after the other then. Objects of a page and more may have pages that nobody writes: so only the
// bin's chunks from kMany to kPagedMost, which bounds what that can cost, and those where most objects are taken by
// realloc, which copies four fifths of them at least. (3,000 strings that grow to 23 KB: 0.58 of the time in 1.08 of
// the memory; 10,000: 0.49 in 1.08. With every chunk of such a bin whole: 0.45 in 1.1.)
inline bool comes_whole(BinId bin, unsigned full, bool growing) {
  constexpr unsigned kMany = 4, kSome = 1, kFreeShift = 3, kPagedMost = 16;
  constexpr int64_t kLiveLeast = int64_t{2} << 20;
  const bool paged = has_pages_of_its_own(info_of(bin));
  if ((paged && !growing && (full < kMany || full >= kPagedMost)) || options.huge_pages == kHugePagesNever ||
      room_is_tight())
    return false;
  const int64_t dirty = page_counts.dirty.get(), live = page_counts.resident.get() - dirty;
  // Large objects that nobody writes count as live, too.
  if (full < kSome || live < kLiveLeast || chunks_in_use() < kLiveLeast / kChunkBytes || !huge_pages_due())
    return false;
  if (full >= kMany) return true;
  const int64_t free = dirty - page_counts.dirty_large.get() + static_cast<int64_t>(kChunkBytes);
  return free <= live >> kFreeShift;
}

}  // namespace folio
