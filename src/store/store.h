// A store: the state of all bins' chunks that takes, gives and purges share. Zero-filled it is a valid, empty store. A
// take names the store; a give need not, as the object's descriptor leads to it.
//
// The process has one (process_store), which malloc, free and the caches use. Tests have others, and heaps to come may.
// All stores share address space, metadata, the chunk table and the counts of pages.
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
  // The chunk whose hints are repaired next; null: the first one.
  Atomic<HintBlock*> repair_block;
  Atomic<unsigned> repair_slot;
  Atomic<bool> refused;       // the kernel has refused to purge something of it
  Hint<unsigned> watched;     // frees that were watched so far; may miss some of simultaneous ones
  Atomic<Descriptor*> young;  // the chunk that was advised to have a huge page last
};

// Where collapse (collapse.h) goes on; touched by one thread at a time, the housekeeper as a rule.
struct CollapsePlace {
  HintBlock* block;     // null: the bin's first one
  unsigned bin_before;  // the bin is the next one
  unsigned slot;
  uint64_t not_before;
  unsigned in_vain;  // how often in a row the kernel had no huge page to give
  bool awaited;      // chunks were found dense in this round, and may be collapsed in the next
};

// Where the next step of a walk over the chunks goes on, so that no chunk is always last (purge.h).
struct PurgeRound {
  Atomic<uint64_t> at{0};  // bin and number of the last chunk that was done
};

struct Store {
  Bin bins[kBins];
  Hint<unsigned> watched;  // frees of all bins that were watched
  PurgeRound purged_to;
  CollapsePlace collapse;

  Bin& of(BinId bin) { return bins[index(bin)]; }
  const Bin& of(BinId bin) const { return bins[index(bin)]; }
};
extern Store process_store;

}  // namespace folio
