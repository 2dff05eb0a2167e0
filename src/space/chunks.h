// Chunks for bins and for guarded objects: carved out of a region, or, where address space is short, lent by a field of
// large objects. (Of 1 GiB that was full of large objects, all freed, small objects get 984 MiB in place of 56.)
//
// Who may call it: everybody, at any time.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace folio {

// 2 MiB of address space at a multiple of 2 MiB, to be committed before use, or null. *vacated: whether it
// is one that was vacated.
char* acquire_chunk(bool* vacated = nullptr);

// A chunk of what large objects have left, committed and mostly resident: large.h, lend_resident_chunk. Or null.
char* acquire_resident_chunk(uint64_t resident[2]);

// For a chunk that could not be opened, or is retired: no address of it is in use.
void return_chunk(char* chunk);

// The same, but some such chunks stay mapped, for the next acquire_chunk: `chunk` reads as zero.
void vacate_chunk(char* chunk);
// Returns all that were vacated. Returns how many.
size_t return_vacant_chunks();

// How many chunks are mapped: acquired and not returned.
size_t chunks_in_use();

}  // namespace folio
