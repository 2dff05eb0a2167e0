// Regions: reserved address space from which chunks are carved by an atomic bump. Regions start small (a limit on
// address space may be tight) and double. A chunk is unmapped only when it holds nothing and address space is short
// (store/retire.h). Called when a bin needs another chunk.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "sync/relaxed.h"

namespace folio {

// The region in use: | first chunk not carved : 32 | end : 32 | in chunk numbers; equal when used up.
extern Atomic<uint64_t> region_cursor;
extern Counter<size_t> region_reserved;  // what region_bytes() says

// A chunk, zero-filled once it is committed; null if there is no address space.
char* carve_chunk();

// Gives a chunk back of which no address is in use.
void uncarve_chunk(char* chunk);

// Address space reserved for chunks so far.
size_t region_bytes();

}  // namespace folio
