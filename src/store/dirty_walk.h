// Walks over the chunks with a raised hint; mostly the dirty one: a page of them may be free and resident.
//
// Any thread, any time; several walks of one round at once each go their own way, and the last one says where the next
// begins.
#pragma once

#include <stdint.h>

#include "store/hints.h"
#include "store/store.h"

namespace folio {

// A chunk of a bin, by address / kChunkBytes; number 0: the place before the bin's first one.
struct ChunkPlace {
  unsigned bin;
  uint64_t number;
  bool is(const HintBlock& block) const { return number != 0 && window_of(chunk_at(number)) == block.window; }
  unsigned slot() const { return window_slot(chunk_at(number)); }
  static const char* chunk_at(uint64_t number) { return reinterpret_cast<const char*>(number << kChunkShift); }
};

// Calls visit(descriptor) for the bin's chunks whose hint is raised, behind `from` and up to `last` (number 0: all),
// until that returns false; then returns false too.
template <class Visit>
bool visit_hinted(Store& store, unsigned hint, unsigned bin, ChunkPlace from, ChunkPlace last, Visit&& visit) {
  // [blocks] acquire: pairs with block_for.
  HintBlock* block = store.bins[bin].blocks.load(order::acquire);
  unsigned slot = 0;
  if (from.number != 0) {
    while (block != nullptr && !from.is(*block)) block = block->next;
    slot = from.slot() + 1;
  }
  for (; block != nullptr; block = block->next, slot = 0) {
    while (slot < kWindowChunks) {
      Descriptor* d = find_chunk(*block, hint, slot);
      if (d == nullptr) break;
      slot = window_slot(d->first) + 1;
      if (last.is(*block) && slot > last.slot() + 1) return true;
      if (!visit(*d)) return false;
    }
    if (last.is(*block)) return true;
  }
  return true;
}

// Calls visit(descriptor, &again) for chunks of all bins until that returns false; from where the last walk of the
// round ended, or from its last chunk if `again` was set. With `around` goes on from the last bin's last chunk to the
// first, up to where it began. Returns whether the last bin's last chunk was reached.
template <class Visit>
bool walk_dirty(Store& store, ChunkRound& round, bool around, Visit&& visit) {
  const uint64_t at = round.at.load(order::relaxed);  // relaxed: a starting point
  const ChunkPlace start = at == 0 ? ChunkPlace{1, 0} : ChunkPlace{static_cast<unsigned>(at >> 32), at & 0xffffffffu};
  ChunkPlace now = start;
  const auto visit_one = [&](Descriptor& d) {
    // Before the visit, by which the chunk may leave its bin.
    const uint64_t number = reinterpret_cast<uintptr_t>(d.first) >> kChunkShift;
    bool again = false;
    const bool more = visit(d, &again);
    if (!again) now.number = number;
    return more;
  };
  const auto visit_bins_below = [&](unsigned end) {
    for (; now.bin < end; now = {now.bin + 1, 0}) {
      if (!visit_hinted(store, kDirty, now.bin, now, {}, visit_one)) return false;
    }
    return true;
  };
  const bool complete = visit_bins_below(kBins);
  if (complete) {
    now = {1, 0};
    if (around && visit_bins_below(start.bin) && start.number != 0)
      visit_hinted(store, kDirty, start.bin, {}, start, visit_one);
  }
  round.at.store(uint64_t{now.bin} << 32 | now.number, order::relaxed);  // relaxed: a starting point
  return complete;
}

}  // namespace folio
