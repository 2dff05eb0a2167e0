// Shards: what all threads would meet on, once for each kShardCpus CPUs, so that a line has few visitors. A thread
// gives to the shard of its CPU and takes from there first, then from the others. A process that runs on no more CPUs
// than that has one shard: which CPUs there are shows when somebody gives from them.
#pragma once

#include "base/atomic.h"
#include "os/os.h"

namespace folio {

inline constexpr unsigned kShardCpus = 8;
inline constexpr unsigned kShardsMost = 32;  // further CPUs share them

// In use: a power of two that only grows.
extern Atomic<unsigned> shards;

// To give to; in use from now on.
unsigned own_shard();

// To take: what attempt(shard) finds first. The order differs from shard to shard, so that those who find their own
// empty do not all go on to the same one.
template <class Attempt>
FOLIO_INLINE auto find_in_shards(Attempt&& attempt) {
  const unsigned n = shards.load(order::relaxed);  // relaxed: all shards are valid; one that is new is missed once
  const unsigned own = __builtin_expect(n == 1, true) ? 0 : os::cpu() / kShardCpus % n;
  for (unsigned i = 0;;) {
    auto* found = attempt(own ^ i);
    if (found != nullptr || ++i == n) return found;
  }
}

}  // namespace folio
