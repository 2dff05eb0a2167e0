// Purge: giving the physical pages of free objects back to the kernel.
//
//   claim    take every object that touches a run of dirty pages: fetch_or, word by word. If one was taken, give the
//            others back. Nobody waits for a claim: takers look elsewhere.
//   purge    madvise the pages; clear their resident bits.
//   give     fetch_and the claim away, raise the hints; mark pages that have become free meanwhile.
//
// A huge page of which nothing is taken goes as a whole: then all objects of its cluster's eight chunks are claimed at
// once. A thread that stops for ever between claim and give keeps the claimed objects from everybody, nothing else.
//
// Decay: a tick purges the dirty pages that the tick before marked as aged, and marks the other dirty ones; a take
// clears the mark. So pages go between one and two ticks after they were freed.
#pragma once

#include <stddef.h>

#include "config/size_classes.h"
#include "store/residency.h"
#include "store/store.h"

namespace folio {

enum class PurgeWhich {
  kAged,  // pages that were dirty at the last tick and are dirty now
  kNow,   // all dirty pages
  kAll,   // also free resident pages without a mark, as a thread may have stopped before it marked them
};

// The worth_shift of the program's own calls, where each run of pages costs a system call: they leave scattered pages
// to a tick, unless a chunk has 1/2^2 of its resident pages to give.
inline constexpr unsigned kWorthACall = 2;
// Of others: each chunk is worth it.
inline constexpr unsigned kWorthAlways = kChunkShift;

// A step of a walk over the chunks with dirty pages. It goes on where the last step of the same round ended, and marks
// the dirty pages that it leaves in a chunk as aged, for the next visit. Any thread, any time.
struct PurgeStep {
  PurgeWhich which;
  size_t most_bytes;     // ends after about so many, purged by kPurgeRunBytes at most, or a huge page, at once
  unsigned worth_shift;  // skips chunks that would give less than 1 / 2^worth_shift of their resident pages
  unsigned most_chunks;  // visited at most: the program's calls must not look at every chunk of a large heap
  bool around;           // goes on from the last chunk to the first, up to where the step began
};
struct PurgeStepDone {
  size_t purged;    // bytes
  bool complete;    // the last chunk was reached: the next step, unless around, starts another round
  bool worthwhile;  // some chunk has enough aged pages for a next visit, unless they are taken before
};
PurgeStepDone purge_bins_step(Store& store, ChunkRound& round, const PurgeStep& step);

// Takes all of these objects; if one is taken already, takes none and returns false.
bool claim_objects(Descriptor& d, Objects objects, PageChange& change);
// Gives claimed objects back, and marks those of their pages that are resident and free.
void release_objects(Descriptor& d, Objects objects, PageChange& change);

// The same for a chunk for good, or until open_commit: nobody commits in it either. is_chunk_free: a look before.
bool is_chunk_free(Descriptor& d);
bool claim_chunk(Descriptor& d, PageChange& change);
// Clears the marks of a claimed chunk's pages. Those that were resident go to `resident`, if given.
void clear_marks(Descriptor& d, PageChange& change, uint64_t* resident);

// Lets the next purge try again the pages that the kernel has refused to purge.
void retry_refused(Store& store);

// Marks all dirty pages as aged, without a system call.
void age_bins(Store& store);

}  // namespace folio
