// A purge of a store's bins that may visit every chunk. Returns bytes purged.
#pragma once

#include <stddef.h>

#include "store/purge.h"
#include "store/store.h"

namespace folio_test {

inline size_t purge_bins(folio::Store& store, folio::PurgeWhich which, size_t most_bytes) {
  return purge_bins_step(store, store.purged_to, {which, most_bytes, folio::kWorthAlways, ~0u, true}).purged;
}

}  // namespace folio_test
