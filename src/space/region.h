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

// 2 MiB of address space at a multiple of 2 MiB, to be committed before use, or null.
char* acquire_chunk();

// For a chunk that could not be opened, or is retired: no address of it is in use.
void return_chunk(char* chunk);

// Where address space is short, chunks come from fields of large objects. Both functions are declared here and defined
// in large.cc, since regions are a layer below large objects and may not include their headers.
//
// Lends a chunk, zero-filled once it is committed. Null if there is none.
char* lend_chunk();
// Takes a chunk back that has no live object, no resident page, and no bin's entry any more. False if it was not lent.
bool take_back_chunk(char* chunk);

// Address space reserved for chunks so far, and chunks carved from it.
size_t region_bytes();
size_t region_chunks();

}  // namespace folio
