// Occupancy words: each is the truth about 64 objects. Takes, gives and purges change them by set_bits and clear_bits
// alone, which raise the folio's hint if they moved it into another class with room. Also the walk over a bin's chunks,
// and from an address to its object.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "store/descriptor.h"
#include "store/hints.h"
#include "store/store.h"

namespace folio {

// The bin's next chunk from the place (*block, *slot) on, which moves behind it. Null if there is none; then *block is
// null too.
Descriptor* next_chunk(HintBlock** block, unsigned* slot);

// Calls visit(descriptor) for each open chunk of the bin until it returns false.
template <class Visit>
void visit_chunks(Store& store, BinId bin, Visit&& visit) {
  HintBlock* block = store.of(bin).blocks.load(order::acquire);  // [blocks] acquire: pairs with block_for
  unsigned slot = 0;
  for (Descriptor* d; (d = next_chunk(&block, &slot)) != nullptr && visit(*d);) {
  }
}

// The object that holds an address of a bin's chunk.
struct Place {
  Descriptor* descriptor;  // null: the address is in no object
  unsigned object;
  char* base;      // where the object starts
  char* slot_end;  // where its slot ends
  bool damaged;    // there is a descriptor, but it was overwritten
  bool taken() const {
    Word& word = descriptor->occupancy(object / kFolioObjects);
    return (word.load(order::relaxed) >> object % kFolioObjects & 1) != 0;  // relaxed: a look, not a claim
  }
};
Place place_of(const void* address);

// Sets the bits `mask` of a folio; returns the word before.
inline uint64_t set_bits(Descriptor& d, unsigned folio, uint64_t mask) {
  const uint64_t valid = d.valid(folio);
  // [object] acquire: sees what the last owner wrote; pairs with clear_bits. [hint] seq_cst: before the hints are read.
  const uint64_t before = d.occupancy(folio).fetch_or(mask, order::seq_cst);
  const Fullness after = fullness_of(before | mask, valid);
  if (after != kFull && after != fullness_of(before, valid)) raise_folio(d, folio, after);
  return before;
}

// What clear_bits found.
struct Cleared {
  uint64_t bits;  // those that were set
  uint64_t left;  // those still set
};
// Clears the bits `mask` of a folio.
FOLIO_INLINE Cleared clear_bits(Descriptor& d, const BinInfo& info, unsigned folio, uint64_t mask) {
  // [object] release: what the program wrote comes before the next owner; pairs with set_bits and a purge's claim.
  // [hint] seq_cst: before the hints are read.
  const uint64_t before = d.occupancy(info, folio).fetch_and(~mask, order::seq_cst);
  const uint64_t left = before & ~mask, valid = valid_in(info, folio);
  // A folio with room has a hint raised in its class, or somebody raises it now.
  if (left == 0 || before == valid || !is_raised(d, info, folio, kPartlyFull)) {
    const Fullness now = fullness_below_full(left, valid);
    if (now == kEmpty || !is_raised(d, info, folio, now)) raise_folio(d, folio, now);
  }
  return {before & mask, left};
}
inline Cleared clear_bits(Descriptor& d, unsigned folio, uint64_t mask) { return clear_bits(d, d.info(), folio, mask); }

}  // namespace folio
