// Raises, lowers, repairs and searches the three levels of hint bitmaps.
#include "store/hints.h"

namespace folio {

namespace {

// Sets the bit unless it is seen set.
void raise_bit(Word& word, uint64_t bit) {
  // [hint] seq_cst: the raiser's read, after its write to the level below; pairs with lower_bit and its caller's look.
  if ((word.load(order::seq_cst) & bit) == 0) word.fetch_or(bit, order::seq_cst);
}

void lower_bit(Word& word, uint64_t bit) {
  word.fetch_and(~bit, order::seq_cst);  // [hint] seq_cst: before the caller's second look; pairs with raise_bit
}

}  // namespace

void raise_chunk(Descriptor& d, unsigned hint) {
  const unsigned slot = window_slot(d.first);
  raise_bit(d.block->chunks[hint][slot / 64], uint64_t{1} << slot % 64);
  raise_bit(d.block->summary[hint], uint64_t{1} << slot / 64);
}

void raise_new_chunk(Descriptor& d) {
  const unsigned slot = window_slot(d.first);
  // [hint] seq_cst: a write even if a retired chunk's bit is set here, so that whoever lowers that sees this chunk's
  // entry; and before the summary is read. unseen: that takes a third thread which has raised the summary just then
  d.block->chunks[kEmpty][slot / 64].fetch_or(uint64_t{1} << slot % 64, order::seq_cst);
  raise_bit(d.block->summary[kEmpty], uint64_t{1} << slot / 64);
}

void lower_chunk(Descriptor& d, unsigned hint) {
  const unsigned slot = window_slot(d.first);
  lower_bit(d.block->chunks[hint][slot / 64], uint64_t{1} << slot % 64);
  if (hint != kDirty && find_folio(d, static_cast<Fullness>(hint)) >= 0) raise_chunk(d, hint);
  // If the chunk was retired meanwhile, the bit may be a new chunk's at its place, whose raise came before the bit was
  // lowered here (then this look sees the chunk) or after.
  Descriptor* const now = chunk_in(*d.block, slot);
  if (now != nullptr && now != &d) raise_chunk(*now, hint);
}

Descriptor* find_chunk(HintBlock& block, unsigned hint, unsigned from) {
  unsigned first = from / 64;
  while (first < kWindowChunks / 64) {
    // Relaxed: a hint that this search misses stays raised, and one that it lowers gets a second look.
    const uint64_t words = block.summary[hint].load(order::relaxed) & ~low_mask(first);
    if (words == 0) return nullptr;
    const unsigned w = lowest_bit(words);
    Word& chunks = block.chunks[hint][w];
    const uint64_t all = chunks.load(order::relaxed);  // relaxed: as for the summary
    const uint64_t bits = w == from / 64 ? all & ~low_mask(from % 64) : all;
    if (bits != 0) {
      const unsigned slot = w * 64 + lowest_bit(bits);
      if (Descriptor* const d = chunk_in(block, slot)) return d;
      // The chunk has been retired, and may be another bin's by now.
      lower_bit(chunks, uint64_t{1} << slot % 64);
      // The second look: a raise_new_chunk came before, and its chunk is seen here, or comes after.
      if (Descriptor* const d = chunk_in(block, slot)) raise_chunk(*d, hint);
      from = slot + 1;
      first = from / 64;
      continue;
    }
    if (all == 0) {
      lower_bit(block.summary[hint], uint64_t{1} << w);
      // [hint] seq_cst: the second look; pairs with raise_bit.
      if (chunks.load(order::seq_cst) != 0) raise_bit(block.summary[hint], uint64_t{1} << w);
    }
    first = w + 1;
  }
  return nullptr;
}

void raise_folio(Descriptor& d, unsigned folio, Fullness fullness) {
  Word& word = d.hint(fullness, folio / 64);
  const uint64_t bit = uint64_t{1} << folio % 64;
  if (fullness == kEmpty) {
    // [hint] seq_cst: raise_bit for an inverted hint; pairs with lower_folio.
    if ((word.load(order::seq_cst) & bit) != 0) word.fetch_and(~bit, order::seq_cst);
  } else {
    raise_bit(word, bit);
  }
  raise_chunk(d, fullness);
}

void lower_folio(Descriptor& d, unsigned folio, Fullness fullness) {
  Word& word = d.hint(fullness, folio / 64);
  const uint64_t bit = uint64_t{1} << folio % 64;
  if (fullness == kEmpty) {
    word.fetch_or(bit, order::seq_cst);  // [hint] seq_cst: lower_bit for an inverted hint; pairs with raise_folio
  } else {
    lower_bit(word, bit);
  }
  // [hint] seq_cst: the second look; pairs with the change of the word before raise_folio.
  const uint64_t occupancy = d.occupancy(folio).load(order::seq_cst);
  // Raises the class that the word has now, also if that is another: a thread may have stopped between its change of
  // the word and its raise.
  const Fullness now = fullness_of(occupancy, d.valid(folio));
  if (now != kFull) raise_folio(d, folio, now);
}

void repair_chunk(Descriptor& d) {
  for (unsigned folio = 0; folio < d.info().folios; ++folio) {
    const uint64_t word = d.occupancy(folio).load(order::relaxed);  // relaxed: nothing is lowered for it
    const Fullness now = fullness_of(word, d.valid(folio));
    if (now != kFull) raise_folio(d, folio, now);
  }
}

int find_folio(Descriptor& d, Fullness fullness, unsigned from) {
  const unsigned words = d.hint_words(), folios = d.info().folios;
  Word* const hints = &d.hint(fullness, 0);
  const uint64_t other_way = fullness == kEmpty ? ~uint64_t{0} : 0;
  for (unsigned w = from / 64; w < words; ++w) {
    // [hint] seq_cst: the second look; pairs with raise_bit
    const uint64_t bits = (hints[w].load(order::seq_cst) ^ other_way) & ~low_mask(w == from / 64 ? from % 64 : 0);
    if (bits == 0) continue;
    const unsigned folio = w * 64 + lowest_bit(bits);
    return folio < folios ? static_cast<int>(folio) : -1;
  }
  return -1;
}

}  // namespace folio
