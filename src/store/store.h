// A store: the chunks of all bins, shared by takes, gives and purges. Zero-filled it is a valid, empty store. A take
// names the store; a give need not, as the object's descriptor leads to it.
//
// The process has one (process_store), which malloc, free and the caches use; tests have others. All stores share
// address space, metadata, the chunk table and the counts of pages.
//
// Who may touch it: everybody, as each field says.
#pragma once

#include <stdint.h>

#include "base/atomic.h"
#include "config/size_classes.h"
#include "sync/relaxed.h"

namespace folio {

struct Descriptor;
struct HintBlock;

struct alignas(64) Bin {
  Atomic<HintBlock*> blocks;  // one for each window that has chunks of the bin, newest first; never removed
  Counter<unsigned> chunks;   // opened and not retired
  // The chunk whose hints are repaired next; null: the bin's first one.
  Atomic<HintBlock*> repair_block;
  Atomic<unsigned> repair_slot;
  Atomic<bool> refused;  // the kernel has refused to purge some page
  // A realloc that copies at least four fifths of the object that it wants is about to take it; and how many more takes
  // were for such ones than not, lately (note_growth in cluster.h).
  Hint<bool> growing;
  Hint<uint8_t> grown;
  Counter<unsigned> watched;  // frees watched so far
  // The chunk that was inherited last, to be used up before another is.
  Atomic<Descriptor*> inherited;
  Hint<uint64_t> swapped_to;  // the number of the last chunk that was looked at to be given up for it; 0: none
};

// Where collapse (collapse.h) goes on; touched by one thread at a time, the housekeeper as a rule.
struct CollapsePlace {
  HintBlock* block;     // null: the bin's first one
  unsigned bin_before;  // the bin's number - 1
  unsigned slot;
  uint64_t not_before;
  unsigned in_vain;  // how often in a row the kernel had no huge page to give
  bool awaited;      // chunks found dense in this round may be collapsed in the next
};

// Where the next walk over chunks (dirty_walk.h) goes on, so that no chunk is always last.
struct ChunkRound {
  Atomic<uint64_t> at{0};  // bin and number of the last chunk that was visited
};

struct Store {
  Bin bins[kBins];
  Counter<unsigned> watched;  // frees of all bins that were watched
  ChunkRound purged_to;       // purge.h
  ChunkRound inherited_to;    // retire.h
  // How much must be dirty, in bins and beyond them, before the next look, as the last one was in vain.
  Hint<int64_t> inherit_from, borrow_from;
  Hint<uint32_t> in_vain;  // how many looks for a chunk to inherit were in vain since one was found
  Hint<bool> pinned;       // caches may keep each chunk from being inherited: they are to be drained (core/clock.cc)
  CollapsePlace collapse;

  Bin& of(BinId bin) { return bins[index(bin)]; }
  const Bin& of(BinId bin) const { return bins[index(bin)]; }
};
extern Store process_store;

}  // namespace folio
