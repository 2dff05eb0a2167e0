// Regions: reserved address space from which clusters of chunks are carved by an atomic bump. Regions start small (a
// limit on address space may be tight) and double. A cluster is unmapped only when it holds nothing, and address space
// is short (store/retire.h, chunks.h). The hole that it leaves is the kernel's: no region fills it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "os/os.h"
#include "sync/relaxed.h"

namespace folio {

// The region in use: | first cluster not carved : 32 | end : 32 | in numbers of clusters; equal when used up.
extern Atomic<uint64_t> region_cursor;
extern Counter<size_t> region_reserved;  // what region_bytes() says

// os::reserve, where the first `entered` bytes may have entries in the chunk table: not at a place whose windows others
// 16 TiB away have taken. (A program that reserves 16 TiB had no chunk more: the kernel offers what lies below.)
void* reserve_apart(size_t bytes, size_t alignment, size_t entered, os::HugePages pages = os::HugePages::kRefused);

// How much to reserve where `bytes` are wanted: at most a 32nd of RLIMIT_AS, as it was at the first call, in whole
// clusters. (Where a region and a field of 64 MiB just fit, at 280 or 300 MiB, ruby and dot had no address space left
// for their threads' stacks, though they ran at 260.)
size_t modest(size_t bytes);

// A cluster, zero-filled once it is committed; null if there is no address space.
char* carve_cluster();

// Gives the address space of a cluster back of which no address is in use. False if the kernel refuses, as it does at
// the limit on mappings in the middle of one: the cluster is as it was.
bool uncarve_cluster(char* start);

// Address space reserved for chunks so far.
size_t region_bytes();

}  // namespace folio
