// Collapse: a chunk of small pages, nearly all of which are in use, becomes a huge page. So do the first chunks of a
// bin, whose later ones come as huge pages from the start, and chunks that were thinned out and have filled up again:
// else a service that was busy, idle and busy again would miss the TLB for the rest of its life. (Of a million objects,
// 95 % of them replaced, one is read at random in 309 to 313 ns in place of 326 to 343.)
//
// The kernel copies the chunk, and who touches it waits meanwhile; so only the housekeeper does it, for about a
// hundredth of the time. None goes back and forth: a chunk has to be dense at two looks, five times `decay` apart, with
// nothing purged in between; and what may be free in it is a quarter of what breaks a huge page up again (purge.cc).
//
// Only what was opened since the last fork: what was there before may share its pages with a parent or a child, and a
// huge page is a copy. (Four workers of 200 MiB that did nothing had 640 MiB of their own after 12 s.)
#pragma once

#include "store/descriptor.h"
#include "store/store.h"

namespace folio {

// Looks at some chunks, the next ones each time, and collapses those that have stayed dense. Returns whether there is
// more to do, now or later. For one thread at a time.
bool collapse_dense_chunks(Store& store);

// Its steps for one chunk, of any thread: whether nearly all of it is in use, and it is not huge yet; to make it a huge
// page. False if the kernel cannot.
bool is_dense(Descriptor& d);
bool collapse_chunk(Descriptor& d);

// Before each fork.
void collapse_note_fork();

}  // namespace folio
