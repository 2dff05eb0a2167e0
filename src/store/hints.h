// Hints: where a bin looks for a folio with room. Three levels of bitmaps for each fullness class:
//
//   folios of a chunk (in its descriptor)  ->  chunks of a window (HintBlock::chunks)  ->  words of those (summary)
//
// A raised bit says "look here"; it may be stale, never lost:
//
//   raise: change the level below; then, level by level from below, set the bit unless it is seen set.
//   lower: clear the bit; then look at the level below again, and set the bit again if that asks for it.
//
// Each side writes one word and then reads the other's (Dekker), so all four accesses are sequentially consistent: one
// side sees the other. Whoever finds a stale hint lowers it and raises the right one.
//
// What a thread that stops for ever hides:
//   - while it lowers a chunk's or a summary bit: the chunk's folios of that class, or the bit's 64 chunks, until one
//     of them is raised again;
//   - between two levels of a raise: the folio, as long as its own bit is set, as whoever sees that raises no more.
// A bin that is about to open a chunk first repairs two that it has (repair_chunk), so nothing stays hidden.
#pragma once

#include <stdint.h>

#include "space/chunk_table.h"
#include "store/descriptor.h"

namespace folio {

// In the order in which a bin looks, the fullest first.
enum Fullness : unsigned { kNearlyFull = 0, kPartlyFull = 1, kEmpty = 2, kFull = 3 };

// Nearly full: at least three quarters of the objects are taken.
inline bool is_nearly_full(unsigned room, uint64_t valid) {
  return 4 * room <= (valid == ~uint64_t{0} ? kFolioObjects : popcount(valid));
}
// Of a word that is not full.
inline Fullness fullness_below_full(uint64_t word, uint64_t valid) {
  if (word == 0) return kEmpty;
  // One or two free objects, as most folios of a full heap have: to count them takes 20 instructions.
  const uint64_t but_one = ~word & (~word - 1);
  if (valid == ~uint64_t{0} && (but_one & (but_one - 1)) == 0) return kNearlyFull;
  return is_nearly_full(popcount(valid & ~word), valid) ? kNearlyFull : kPartlyFull;
}
inline Fullness fullness_of(uint64_t word, uint64_t valid) {
  return word == valid && word != 0 ? kFull : fullness_below_full(word, valid);
}

// A fourth hint for chunks: some free page may be resident (purge.h).
inline constexpr unsigned kDirty = 3;
inline constexpr unsigned kChunkHints = 4;

struct Bin;

// One bin's hints for the chunks of one window. The first four fields are written before the block is published.
struct HintBlock {
  HintBlock* next;  // of the bin's blocks
  Window* window;
  Bin* home;  // in the block's store
  BinId bin;
  Word summary[kChunkHints];
  Word chunks[kChunkHints][kWindowChunks / 64];
  Word opened[kWindowChunks / 64];                  // where the bin has a chunk
  Atomic<Descriptor*> retired[kWindowChunks / 64];  // lists of descriptors of retired chunks
};

// The chunk at a place of the window, or null if it is not one of the block's bin, or belongs to another block.
inline Descriptor* chunk_in(const HintBlock& block, unsigned slot) {
  // The code first: where a chunk was retired there may be a huge block by now, whose descriptor is of another type.
  if (chunk_code_inside(block.window->chunk(slot)) != index(block.bin)) return nullptr;
  // [descriptor] acquire: pairs with set_chunk.
  auto* d = static_cast<Descriptor*>(block.window->descriptor[slot].load(order::acquire));
  return d != nullptr && d->block == &block ? d : nullptr;
}

void raise_chunk(Descriptor& d, unsigned hint);
void raise_new_chunk(Descriptor& d);             // as empty, after its entry was written
void lower_chunk(Descriptor& d, unsigned hint);  // of a fullness class: unless a folio's hint is raised

// The lowest chunk at or after `from` whose hint looks raised, or null. Lowers stale bits of the summary and of retired
// chunks.
Descriptor* find_chunk(HintBlock& block, unsigned hint, unsigned from = 0);

// Whether a folio's hint is seen set. Not for kEmpty, whose hints are inverted.
FOLIO_INLINE bool is_raised(Descriptor& d, const BinInfo& info, unsigned folio, Fullness fullness) {
  // [hint] seq_cst: the raiser's read, after its change of the occupancy word; pairs with lower_folio
  const uint64_t word = d.words()[fullness * sizes::hint_words(info) + folio / 64].load(order::seq_cst);
  return (word >> folio % 64 & 1) != 0;
}
void raise_folio(Descriptor& d, unsigned folio, Fullness fullness);
void lower_folio(Descriptor& d, unsigned folio, Fullness fullness);  // and raises that of its class now

// Raises all hints that the chunk's occupancy words ask for.
void repair_chunk(Descriptor& d);

// The lowest folio, at or after `from`, whose hint looks raised, or -1.
int find_folio(Descriptor& d, Fullness fullness, unsigned from = 0);

}  // namespace folio
