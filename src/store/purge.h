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
  kAll,   // and free pages without a mark, since a thread may have stopped before it marked them
};

// A worth_shift. Scattered free pages cost a system call each: the program's own calls leave them to a tick, unless a
// chunk has a quarter of its pages to give.
inline constexpr unsigned kWorthACall = 2;

// A step of a walk over the chunks with dirty pages. It goes on where the last step of the same round ended, and marks
// as aged the dirty pages that it leaves in a chunk: what is still free at the next visit goes then. Any thread, any
// time.
struct PurgeStep {
  PurgeWhich which;
  size_t most_bytes;     // about so many are purged, in calls of at most kPurgeRunBytes
  unsigned worth_shift;  // skips chunks that would give less than 1 / 2^worth_shift of their resident pages
  unsigned most_chunks;  // visited at most: the program's calls must not look at every chunk of a large heap
  bool around;           // behind the last chunk goes on with the first, up to where the step began
};
struct PurgeStepDone {
  size_t purged;    // bytes
  bool complete;    // the last chunk was reached: the next step, unless around, starts another round
  bool worthwhile;  // some chunk has enough aged pages for the next visit, unless they are used until then
};
PurgeStepDone purge_bins_step(Store& store, PurgeRound& round, const PurgeStep& step);
// A step that visits every chunk. Returns bytes purged.
size_t purge_bins(Store& store, PurgeWhich which, size_t most_bytes);

// Takes all of these objects, or none and returns false, if one of them is taken.
bool claim_objects(Descriptor& d, Objects objects, PageChange& change);
// Gives claimed objects back, and marks their pages that are free now.
void release_objects(Descriptor& d, Objects objects, PageChange& change);

// Lets the next purge try all pages again that the kernel has refused to purge.
void retry_refused(Store& store);

// Marks everything that is free and resident as aged. Cheap: no system call.
void age_bins(Store& store);

}  // namespace folio
