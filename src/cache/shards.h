// Shards: copies of a word that all threads would write, one for each kShardCpus CPUs, so that few threads meet on a
// line. A thread gives to the shard of its CPU; it takes from there first, then from the others. A shard comes into use
// when a thread first gives from one of its CPUs: so a process on few CPUs has one.
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
