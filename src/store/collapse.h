// Collapse: makes a cluster whose chunks are all dense, with nearly all of their small pages in use, a huge page. Dense
// are the first chunks of bins (later ones are parts of huge pages from the start) and chunks that were purged and have
// filled up again: without collapse a service that was busy, idle and busy again would miss the TLB for the rest of its
// life. (Of a million objects, 95 % of them replaced, a random one is read in 309 to 313 ns in place of 326 to 343.)
//
// The kernel copies the cluster, and threads that touch it wait meanwhile. So only the housekeeper collapses clusters,
// for about 1/100 of the time. None goes back and forth by ticks: each chunk must be dense at two visits, 5 * `decay`
// apart, and nothing purged in between; and dense is up to 1/32 of its pages free, where a tick breaks a huge page up
// again if 1/8 of it is (purge.cc).
//
// Only chunks opened since the last fork are collapsed: older ones may share their pages with a parent or a child, and
// a huge page is a copy. (Four workers of 200 MiB that did nothing had 640 MiB of their own after 12 s.)
#pragma once

#include "store/descriptor.h"
#include "store/store.h"

namespace folio {

// Visits some chunks, from where the last call ended, and collapses those that have stayed dense. Returns whether there
// is more to do, now or later. For one thread at a time.
bool collapse_dense_clusters(Store& store);

// The steps, for any thread. is_dense: the chunk may be a part of a collapsed cluster. collapse_cluster: that of the
// chunk; false if bins do not have all of it, or the kernel refuses.
bool is_dense(Descriptor& d);
bool collapse_cluster(Descriptor& d);
// The chunks, neighbours, become huge; all of a cluster outside of tests.
bool collapse_together(Descriptor* const* chunks, unsigned n);

// Called before each fork.
void collapse_note_fork();

}  // namespace folio
