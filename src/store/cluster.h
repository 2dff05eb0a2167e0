// The chunks of a cluster (space/chunks.h) as bins have them: what one huge page may hold is made huge, purged or
// collapsed together.
#pragma once

#include "space/chunks.h"
#include "store/descriptor.h"

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

}  // namespace folio
