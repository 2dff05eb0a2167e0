// What of a chunk is committed: all that lies below some page. It grows in steps, before what lies in the next one is
// taken: what is only reserved costs nothing.
//
// What is committed is never committed again, as that would undo a protection that the program has given its objects'
// pages. So one thread at a time takes a step: it marks the word as busy. Nobody waits for it: others use what there
// is, or look elsewhere. A thread that stops in a step for ever keeps what the chunk has not yet, nothing else.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "store/descriptor.h"

namespace folio {

enum class Commit { kDone, kBusy, kRefused };

// Commits what it takes to use some of these free objects of a folio. Returns which can be used: all of them, or, where
// *result says why, those that lie in what is committed.
uint64_t commit_objects(Descriptor& d, unsigned folio, uint64_t choice, Commit* result);

// The chunk up to `end`, bytes from its start, a whole page.
Commit commit_to(Descriptor& d, size_t end);

// All of it.
Commit commit_chunk(Descriptor& d);

// No step any more, until open_commit. False if a thread takes one just now.
bool close_commit(Descriptor& d);
void open_commit(Descriptor& d);

// How far it is, in bytes from the chunk's start.
size_t committed_bytes(const Descriptor& d);

}  // namespace folio
