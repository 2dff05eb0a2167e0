// Shards: one copy per kShardCpus CPUs of a stack that all threads would write, so that few threads meet on a line. A
// thread pushes to its CPU's shard; it pops from there first, then from the others. A shard comes into use when a
// thread on one of its CPUs first pushes, so a process on few CPUs has one.
#pragma once

#include "base/atomic.h"
#include "os/os.h"

namespace folio {

inline constexpr unsigned kShardCpus = 8;
inline constexpr unsigned kShardsMost = 32;  // further CPUs share them

// The number of shards in use: a power of two that only grows.
extern Atomic<unsigned> shards;

// The shard of this CPU, to push to; in use from now on.
unsigned own_shard();

// Returns what attempt(shard) finds first, from this CPU's shard on. The order differs from shard to shard, so that
// threads that find their own empty do not all go on to the same one.
template <class Attempt>
FOLIO_INLINE auto find_in_shards(Attempt&& attempt) {
  const unsigned n = shards.load(order::relaxed);  // relaxed: all shards are valid; a new one is missed once
  const unsigned own = __builtin_expect(n == 1, true) ? 0 : os::cpu() / kShardCpus % n;
  for (unsigned i = 0;;) {
    auto* found = attempt(own ^ i);
    if (found != nullptr || ++i == n) return found;
  }
}

}  // namespace folio
