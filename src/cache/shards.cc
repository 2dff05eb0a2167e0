// Computes which shard a CPU uses, and keeps how many are in use.
#include "cache/shards.h"

namespace folio {

constinit Atomic<unsigned> shards{1};

unsigned own_shard() {
  const unsigned own = os::cpu() / kShardCpus % kShardsMost;
  unsigned n = shards.load(order::relaxed);  // relaxed: all shards are valid
  while (own >= n) {
    if (shards.compare_exchange(n, 2 * n, order::relaxed)) n *= 2;  // relaxed: all are valid
  }
  return own;
}

}  // namespace folio
