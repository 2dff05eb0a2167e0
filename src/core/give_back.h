// Giving memory back to the kernel, from all stores at once. When and how much: clock.h and ladder.h.
#pragma once

#include <stddef.h>

#include "store/purge.h"

namespace folio {

inline constexpr size_t kUnlimited = ~size_t{0};

// Chunks that one step looks at: 0.4 us each where their descriptors are in no cache.
inline constexpr unsigned kStepChunks = 256;

// Purges free pages of bins, large and huge objects. Returns bytes.
size_t purge_everything(PurgeWhich which, size_t most_bytes);

// Purges up to about so many bytes of free pages, aged ones first. Goes on where the last call stopped, so that many
// calls together visit each chunk as often as one call would. Returns bytes.
size_t purge_some(size_t bytes);

// Empties CPU caches and depot.
void empty_shared_caches();

// Everything that can go now. Returns bytes given back.
size_t collect_everything(const char* function);

// Steps of purge_everything: purge_step purges chunks as purge_bins_step does, then free large and huge objects;
// purge_beyond_bins only the latter.
PurgeStepDone purge_step(const PurgeStep& step);
size_t purge_beyond_bins(PurgeWhich which, size_t most_bytes);

}  // namespace folio
