// Chunks for bins: carved out of a region, cluster by cluster, or, where address space is short, lent by a field of
// large objects. (Of 1 GiB that was full of large objects, all freed, small objects get 984 MiB in place of 56.)
//
// A cluster is eight neighbouring chunks, 2 MiB, for any bins. It is committed by one call, and one huge page may back
// it. So a heap of many sizes has huge pages, and a chunk that stands empty, until another size gets it, is small.
// (With chunks of 2 MiB, each with a system call, a mapping and a page table of its own, commands of 2 ms took 1.05 to
// 1.12 of the time.)
//
// Who may call it: everybody, at any time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "base/bits.h"
#include "config/size_classes.h"

namespace folio {

// 256 KiB of address space at a multiple of that, or null. To be committed before use, unless its cluster is
// (kClusterCommitted). `huge`: the caller will use all of it, so it may be a part of a huge page; it is only where the
// cluster says so. *is_new: nobody had it before.
char* acquire_chunk(bool huge, bool* is_new);
inline char* acquire_chunk(bool huge = false) {
  bool is_new;
  return acquire_chunk(huge, &is_new);
}

// A chunk of what large objects have left, committed and mostly resident: large.h, lend_resident_chunk. Or null.
char* acquire_resident_chunk(uint64_t* resident);
// Any chunk that large objects have left, committed; or null.
char* acquire_lent_chunk();
// Where there is no memory for metadata: a chunk that a field has left, and the kernel has granted already, becomes
// metadata, for good. False if there is none. (Under a limit on data that large objects had used up, bins that were new
// got nothing for ever, though all was freed.)
bool lend_to_metadata();

// For a chunk that could not be opened, or is retired: no address of it is in use, and it reads as zero. It is vacant
// then: the next acquire_chunk has it. A lent one is its field's again.
void return_chunk(char* chunk);

// Where address space is short: unmaps clusters whose chunks are all vacant, at most so many. Returns how many.
size_t unmap_vacant_clusters(size_t most = ~size_t{0});

// How many chunks are mapped that were acquired once: vacant ones, too.
size_t chunks_in_use();

// What is left of the open clusters, one for chunks of small pages and one for those of huge ones:
// | number of the next chunk : 32 | how many : 32 |
extern Atomic<uint64_t> open_clusters[2];

// The state of the cluster that an address of a chunk is in: bits, a hint but for the first.
enum ClusterState : unsigned {
  kClusterCommitted = 1,  // as a whole, before its first chunk was handed out
  kClusterHuge = 2,       // all of it came, or comes at the first touch, as a huge page, of which nothing was purged
  kClusterPurged = 4,     // all of it was purged at once, and nothing touched since: it may be made huge again
  kClusterCame = 8,       // it was huge when it was opened: all of a new chunk may be there
};
// Null for a chunk that was lent where no window is.
Atomic<uint8_t>* cluster_state(const void* address);
inline char* cluster_start(const char* address) {
  return reinterpret_cast<char*>(round_down(reinterpret_cast<uintptr_t>(address), kClusterBytes));
}
inline bool is_cluster(const void* address, ClusterState state) {
  const Atomic<uint8_t>* const word = cluster_state(address);
  return word != nullptr && (word->load(order::relaxed) & state) != 0;  // relaxed: a hint
}

// Before a part of a cluster is purged or unmapped: it is huge no more. Withdraws the advice, so that the kernel does
// not bring back what is purged.
void break_cluster(char* chunk);
// After all of a huge cluster was purged at once.
void note_cluster_purged(char* chunk);
// The first touch of a cluster that was purged so takes that mark away, and makes it huge again if it may be. True for
// the one thread that did; false also if the kernel refuses or brings small pages, or the cluster is broken meanwhile.
bool touch_purged_cluster(char* chunk, bool may_be_huge);
// All of the cluster has become a huge page, without advice.
void note_cluster_huge(char* chunk);

}  // namespace folio
