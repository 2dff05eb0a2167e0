// Collapse: a chunk of small pages, nearly all of which are in use, becomes a huge page. So do the first chunks of a
// bin, whose later ones come as huge pages from the start, and chunks that were thinned out and have filled up again:
// else a service that was busy, idle and busy again would miss the TLB for the rest of its life.
//
// The kernel copies the chunk, and who touches it waits meanwhile; so only the housekeeper does it, for a small share
// of the time. What is free in a chunk may be half of what breaks a huge page up again (purge.cc), so that none goes
// back and forth.
#pragma once

namespace folio {

// Looks at some chunks, the next ones each time, and collapses those that are dense. Returns whether there is more to
// do. For one thread at a time.
bool collapse_dense_chunks();

}  // namespace folio
