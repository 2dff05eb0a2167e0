// Purge: giving the physical pages of free objects back to the kernel.
//
//   claim    take every object that touches a run of dirty pages: fetch_or, word by word. If one was taken, give them
//            back. Nothing of the run can be taken meanwhile, and nobody waits: takers look elsewhere.
//   purge    madvise the pages; clear their resident bits.
//   give     fetch_and the claim away, raise the hints; mark what else has become free meanwhile.
//
// A thread that stops between claim and give keeps that run from the others, nothing else.
//
// Decay: a tick purges what the tick before had marked as aged, and marks what is free and resident now; taking clears
// the mark. So pages go between one and two ticks after they were freed.
#pragma once

#include <stddef.h>

#include "config/size_classes.h"
#include "store/residency.h"
#include "store/store.h"

namespace folio {

enum class PurgeWhich {
  kAged,  // what was dirty at the last tick
  kNow,   // all that is dirty now
  kAll,   // and what was not marked so, as a thread may have stopped before it could
};

// Pages that are free here and there cost a system call each: too dear for the program's own calls, while they are few.
// They go at a tick.
inline constexpr unsigned kWorthACall = 2;

// A step purges up to about `most_bytes`, in calls of at most kPurgeRunBytes, of chunks that have at least a share of
// 1 / 2^worth_shift of the pages that they have to give, looks at no more than so many chunks, as the program's calls
// must not look at every chunk of a large heap, and marks as aged what it leaves there: so what a chunk has free goes
// at the second visit. The next step of its round goes on where it ended; with `around` it goes on itself, behind the
// last chunk with the first, up to where it came in. Any thread, any time.
struct PurgeStep {
  PurgeWhich which;
  size_t most_bytes;
  unsigned worth_shift;
  unsigned most_chunks;
  bool around;
};
struct PurgeStepDone {
  size_t purged;    // bytes
  bool complete;    // the last chunk was reached: the next step, unless around, starts another round
  bool worthwhile;  // a chunk has its share to give the next time, unless it is used until then
};
PurgeStepDone purge_bins_step(Store& store, PurgeRound& round, const PurgeStep& step);
// One that looks at every chunk. Returns bytes given back.
size_t purge_bins(Store& store, PurgeWhich which, size_t most_bytes);

// Takes all of these objects, or none; false if one of them is taken.
bool claim_objects(Descriptor& d, Objects objects, PageChange& change);
// Gives them back, and marks pages of which others were given meanwhile.
void release_objects(Descriptor& d, Objects objects, PageChange& change);

// Lets the next purge try again what the kernel refused, all of it.
void retry_refused(Store& store);

// Marks everything that is free and resident as aged. Cheap: no system call.
void age_bins(Store& store);

}  // namespace folio
