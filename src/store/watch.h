// The watch: the first frees of a process, by bin and in all, go one by one straight to their folios, which show a
// misuse at once and exactly. It costs the fast path nothing: in the chunk table a watched chunk has a code whose
// cursors are always closed, so each free there is slow, while mallocs pop from the bin's magazines.
//
// A chunk that is opened while its bin is watched, is watched. When the bin has had its share, the next free in such a
// chunk makes its entry an ordinary one.
//
// Rejected: to watch the first frees of each thread. These need the bin's cursor closed, which makes mallocs slow too.
//
// Who may touch it: everybody; its counts are estimates.
#pragma once

#include "store/store.h"

namespace folio {

inline constexpr unsigned kWatchShares = 8;  // all bins together have so many times what one has: option watch

// Whether a chunk that is opened now is to be watched.
bool watch_wanted(const Store& store, BinId bin);

// After a free of an address in a watched chunk.
void watch_free(Store& store, BinId bin, const void* address);

}  // namespace folio
