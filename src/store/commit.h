// Commit: a chunk is committed from its start up to some page. A new one is committed as a whole, with its cluster
// (space/chunks.h). Where the kernel refused that, or a field has lent the chunk, that part grows in steps, before
// objects beyond it are taken; the rest is only reserved, which costs nothing.
//
// No page is committed twice, as that would undo a protection that the program has given its objects' pages. So one
// thread at a time takes a step, and marks the word `committed` as busy meanwhile. Nobody waits for it: others use the
// committed part, or look elsewhere. A thread that stops in a step for ever makes the rest unusable, nothing else.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "store/descriptor.h"

namespace folio {

enum class Commit { kDone, kBusy, kRefused };

// [commit] acquire: after the kernel has made it writable; pairs with commit_to.
inline bool is_whole(const Descriptor& d) { return d.committed.load(order::acquire) == kChunkBytes / kPageBytesLeast; }

// Commits free objects of a folio. Returns those that can be used: all of `choice`, or, if *result is not kDone, those
// in the committed part.
uint64_t commit_objects_of_part(Descriptor& d, unsigned folio, uint64_t choice, Commit* result);
inline uint64_t commit_objects(Descriptor& d, unsigned folio, uint64_t choice, Commit* result) {
  *result = Commit::kDone;
  return is_whole(d) ? choice : commit_objects_of_part(d, folio, choice, result);
}

// Commits the chunk up to `end`: bytes from its start, a multiple of the page size.
Commit commit_to(Descriptor& d, size_t end);

Commit commit_chunk(Descriptor& d);

// Forbids further steps until open_commit. False if a thread is in a step.
bool close_commit(Descriptor& d);
void open_commit(Descriptor& d);

// How much is committed, in bytes from the chunk's start.
size_t committed_bytes(const Descriptor& d);

}  // namespace folio
