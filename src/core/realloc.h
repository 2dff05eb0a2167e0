// Resizing: in place where the slot or the block allows it, by moving pages for huge objects, else by copying.
#pragma once

#include <stddef.h>

#include "core/malloc.h"

namespace folio {

// realloc(3) with an alignment that is kept when the object moves (1: none). `function` for messages.
void* reallocate(void* object, size_t alignment, size_t size, const char* function);

// The same with no alignment and an object that is not null, by the shortest way for objects of up to 1 KiB.
void* reallocate_held(void* object, size_t size, const char* function);
// realloc(3). Without an object it is malloc, in 15 instructions in place of 72: some programs, as Lua, have no other
// function.
FOLIO_INLINE void* reallocate_plain(void* object, size_t size, const char* function) {
  return object == nullptr ? allocate(size) : reallocate_held(object, size, function);
}

// True if the object now has at least `size` bytes where it is.
bool expand(void* object, size_t size, const char* function);

}  // namespace folio
