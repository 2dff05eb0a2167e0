// Which shard a CPU uses, and how many shards are in use.
#include "cache/shards.h"

namespace folio {

constinit Atomic<unsigned> shards{1};

unsigned own_shard() {
  const unsigned own = os::cpu() / kShardCpus % kShardsMost;
  unsigned n = shards.load(order::relaxed);  // relaxed: nothing hangs on it
  while (own >= n) {
    if (shards.compare_exchange(n, 2 * n, order::relaxed)) n *= 2;  // relaxed: as above
  }
  return own;
}

}  // namespace folio
