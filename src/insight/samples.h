// Samples: what is kept of each chosen object (seam.h): size, times, thread, and the stack that allocated it. The stack
// is copied as it is, with the registers; a reader unwinds it, outside (docs/layout.md, "Samples"). So the program that
// allocates needs no unwind tables, no lock, no memory of its own and no symbol, wherever it is interrupted.
//
// An object's address decides on a set of kSampleWays slots in each table. So a free finds the sample, and no index is
// kept. Of all slots of the sets that hold no live sample, the one that was written first is used again; so what was
// freed stays for readers for a while. Where there is none, the next table is made; also where the sample there is less
// than a second old, up to kSlotsForReaders.
#pragma once

#include "insight/sample_tables.h"

namespace folio {

// The caller has allocated the object, and nobody else knows it. Its stack is copied by a system call that a filter may
// forbid, process_vm_readv; `carefully`: without it, and maybe less.
void sample_object(const void* object, size_t size, uint64_t interval, bool carefully = false);
// The caller frees it, and nobody has its address again yet.
void sample_end(const void* object);

// In the child: nobody makes a table, and the samples in a file are the parent's.
void samples_after_fork();

}  // namespace folio
