// Retiring: a chunk of which nothing is live gives its address space back, so that other bins, large and huge objects,
// or the program's own mappings can have it. Only where address space is short: what is free is purged anyway, and a
// chunk costs nothing then.
//
//   claim   the word of what is committed, marked busy for good, so that nobody commits in it any more; then all
//           objects, for good. Whoever still holds the descriptor finds no room in it, ever.
//   leave   its pages go; its entries in the chunk table and the window are cleared.
//   return  the address space goes back to where it came from.
//
// Descriptors are never used again. A thread that stops in between keeps the chunk from everybody, nothing else.
#pragma once

#include <stddef.h>

namespace folio {

// Retires every chunk that can be. Returns how many. Any thread; looks at every chunk.
size_t retire_free_chunks();

}  // namespace folio
