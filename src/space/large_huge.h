// Huge pages for large objects that are likely to be written: those that need not be zero (as for huge objects,
// huge_foresee), from kLargeHugeLeast on. A chunk of a field gets one when such an object takes a part of it, and
// nothing else of it is taken or resident; what the object leaves of the chunk counts as resident and free from then
// on, so that the next objects get it. A purge of any part takes the chunk's advice back.
#pragma once

#include <stddef.h>

#include "space/field.h"

namespace folio {

// From 256 KiB on: smaller buffers are more often written in part.
inline constexpr size_t kLargeHugeLeast = size_t{256} << 10;

// The caller has taken these granules, for an object of at least kLargeHugeLeast bytes that need not be zero: asks for
// huge pages in the chunks that they touch, as far as it may.
void large_prefer_huge(Field& f, unsigned from, unsigned count);

// Before granules of the chunks with these ones are purged.
void large_refuse_huge(Field& f, unsigned from, unsigned count);

}  // namespace folio
