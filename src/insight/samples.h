// Samples: what is kept of each chosen object (seam.h): size, times, thread, and the stack that allocated it. The stack
// is copied as it is, with the registers; a reader unwinds it, outside (docs/layout.md, "Samples"). So the program that
// allocates needs no unwind tables, no lock, no memory of its own and no symbol, wherever it is interrupted.
//
// An object's address selects a set of kSampleWays slots in each table, so a free finds the sample without an index. A
// new sample takes, of all slots of its sets without a live sample, the one that was written first: so samples of freed
// objects stay for readers for a while. Where there is no such slot, the next table is made; also where the sample in
// it is less than a second old, up to kSlotsForReaders.
#pragma once

#include "insight/sample_tables.h"

namespace folio {

// Makes the sample of an object that the caller has allocated and nobody else knows. Copies the stack by a system call
// that a filter may forbid, process_vm_readv; `carefully`: without it, and maybe less of the stack.
void sample_object(const void* object, size_t size, uint64_t interval, bool carefully = false);
// Ends the sample of an object that the caller frees, before the address is handed out again.
void sample_end(const void* object);

// In the child: nobody makes a table, and the samples in a file are the parent's.
void samples_after_fork();

}  // namespace folio
