// Watch: the first frees of a process, so many of each bin and in all, go one by one to their folios, which show misuse
// at once and exactly. The fast path pays nothing: a watched chunk has a code in the chunk table whose cursors are
// always closed, so each free there is slow, while mallocs pop from the bin's magazines.
//
// A chunk that is opened while its bin is watched is watched. Once the bin has had its share, the chunk's next free
// makes its entry an ordinary one.
//
// Rejected: to watch the first frees of each thread: that needs the bin's cursor closed, which makes mallocs slow too.
//
// Who may touch it: everybody. The counts only grow, so a watch that has ended does not begin anew.
#pragma once

#include "config/options.h"
#include "store/store.h"

namespace folio {

inline constexpr unsigned kWatchShares = 8;  // all bins together have this times the share of one (option watch)

// Whether a chunk that is opened now is to be watched.
inline bool watch_wanted(const Store& store, BinId bin) {
  const auto most = static_cast<uint64_t>(options.watch);
  return store.of(bin).watched.get() < most && store.watched.get() < kWatchShares * most;
}

// Called after a free of an address in a watched chunk: counts `frees` of them, and may end the chunk's watch. All
// threads write the counts, so each calls it at every kWatchCountEvery-th free of a bin only, for so many; at each one
// if watch_counts_each(), as the option is too small for that.
inline constexpr unsigned kWatchCountEvery = 16;
void watch_free(Store& store, BinId bin, const void* address, unsigned frees = 1);
inline bool watch_counts_each() {
  constexpr int64_t kCoarse = 64;
  return options.watch < kCoarse * int64_t{kWatchCountEvery};
}

}  // namespace folio
