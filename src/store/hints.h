// Hints: where a bin looks for a folio. Three levels of bitmaps for each fullness class:
//
//   folios of a chunk (in its descriptor)  ->  chunks of a window (HintBlock::chunks)  ->  words of that (summary)
//
// A raised bit says "look here"; it may be stale, never lost:
//
//   raise: change what the bit is about; then, level by level from below, set the bit unless it is seen set.
//   lower: clear the bit; then look again at what it is about, and set it again if there still is something.
//
// "Seen set" against "clear" is a store-load race on two words (Dekker's), so both sides are sequentially consistent:
// the raiser writes the lower level and reads the bit, the lowerer writes the bit and reads the lower level; one of
// them sees the other. Whoever finds a stale hint lowers it and raises the right one. A thread that stops for ever
// while it lowers a chunk's or a summary bit may hide the chunk's folios of that class, or the 64 chunks of that bit,
// until one of them is raised again; one that stops between the bits of two levels may hide the folio as long as its
// own bit stays set, since whoever sees that raises no more. Before a bin opens another chunk it repairs two that it
// has (repair_chunk), so nothing stays hidden.
#pragma once

#include <stdint.h>

#include "space/chunk_table.h"
#include "store/descriptor.h"

namespace folio {

// In the order in which a bin looks: the fullest first.
enum Fullness : unsigned { kNearlyFull = 0, kPartlyFull = 1, kEmpty = 2, kFull = 3 };

// Nearly full: three quarters of its objects are taken.
inline bool is_nearly_full(unsigned room, uint64_t valid) {
  return 4 * room <= (valid == ~uint64_t{0} ? kFolioObjects : popcount(valid));
}
inline Fullness fullness_of(uint64_t word, uint64_t valid) {
  if (word == 0) return kEmpty;
  if (word == valid) return kFull;
  return is_nearly_full(popcount(valid & ~word), valid) ? kNearlyFull : kPartlyFull;
}

// The class that a folio came into by losing bits; kFull where it is the one it was in. (As two calls of fullness_of it
// was a third of what a free in random order cost.)
inline Fullness class_entered(uint64_t before, uint64_t left, uint64_t valid) {
  if (left == before) return kFull;
  if (left == 0) return kEmpty;
  const uint64_t given = before ^ left;
  const unsigned room = popcount(valid & ~left), had = room - ((given & (given - 1)) == 0 ? 1 : popcount(given));
  if (!is_nearly_full(room, valid)) return had == 0 || is_nearly_full(had, valid) ? kPartlyFull : kFull;
  return had == 0 ? kNearlyFull : kFull;
}

// Chunk-level hints of one bin for one window. `kDirty` chunks may have free resident pages (purge.h).
inline constexpr unsigned kDirty = 3;
inline constexpr unsigned kChunkHints = 4;

struct Bin;

struct HintBlock {
  HintBlock* next;  // written before the block is published, as the next three
  Window* window;
  Bin* home;  // of one store
  BinId bin;
  Word summary[kChunkHints];
  Word chunks[kChunkHints][kWindowChunks / 64];
  Word opened[kWindowChunks / 64];                  // chunks that the bin has here, or had
  Atomic<Descriptor*> retired[kWindowChunks / 64];  // descriptors of retired ones, by their places
};

// The chunk at a place of the window, or null if it is not one of the block's bin, or was described by another block.
inline Descriptor* chunk_in(const HintBlock& block, unsigned slot) {
  // The code first: what has another one, or none, may have been a chunk of the bin and be anybody's by now.
  if (chunk_code(block.window->chunk(slot)) != index(block.bin)) return nullptr;
  // [descriptor] acquire: pairs with set_chunk.
  auto* d = static_cast<Descriptor*>(block.window->descriptor[slot].load(order::acquire));
  return d != nullptr && d->block == &block ? d : nullptr;
}

void raise_chunk(Descriptor& d, unsigned hint);
void raise_new_chunk(Descriptor& d);             // that it is empty; its entry is written
void lower_chunk(Descriptor& d, unsigned hint);  // for a fullness class: unless a folio's hint is raised

// A chunk of the block whose hint looks raised, the lowest at or after `from`, or null. Repairs the summary.
Descriptor* find_chunk(HintBlock& block, unsigned hint, unsigned from = 0);

// Whether a folio's hint is seen set, of a class other than kEmpty.
FOLIO_INLINE bool is_raised(Descriptor& d, const BinInfo& info, unsigned folio, Fullness fullness) {
  // [hint] seq_cst: as raise_bit's read
  const uint64_t word = d.words()[fullness * sizes::hint_words(info) + folio / 64].load(order::seq_cst);
  return (word >> folio % 64 & 1) != 0;
}
void raise_folio(Descriptor& d, unsigned folio, Fullness fullness);
void lower_folio(Descriptor& d, unsigned folio, Fullness fullness);  // and raises the one of its class

// Raises every hint that the chunk's words ask for.
void repair_chunk(Descriptor& d);

// The lowest folio, at or after `from`, whose hint looks raised, or -1.
int find_folio(Descriptor& d, Fullness fullness, unsigned from = 0);

}  // namespace folio
