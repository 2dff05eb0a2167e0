// Walks over a bin's chunks and compares words, hints and page marks with each other.
#include "store/check.h"

#include "store/commit.h"
#include "store/occupancy.h"
#include "store/residency.h"

namespace folio {

namespace {

bool check_folio(Descriptor& d, unsigned folio) {
  const uint64_t word = d.occupancy(folio).load(order::relaxed);  // relaxed: nothing is in flight
  const uint64_t valid = d.valid(folio);
  if ((word & ~valid) != 0) return false;
  const Fullness fullness = fullness_of(word, valid);
  if (fullness != kFull) {
    const uint64_t bits = d.hint(fullness, folio / 64).load(order::relaxed);  // relaxed: nothing is in flight
    if (((bits >> folio % 64 & 1) != 0) == (fullness == kEmpty)) return false;
    const unsigned slot = window_slot(d.first);
    const uint64_t chunks = d.block->chunks[fullness][slot / 64].load(order::relaxed);  // relaxed: nothing is in flight
    const uint64_t summary = d.block->summary[fullness].load(order::relaxed);           // relaxed: nothing is in flight
    if ((chunks >> slot % 64 & 1) == 0 || (summary >> slot / 64 & 1) == 0) return false;
  }
  const size_t committed = committed_bytes(d);
  if (word != 0 && d.slot(folio * kFolioObjects + highest_bit(word) + 1) > d.chunk() + committed) return false;
  return resident_objects(d, folio, word) == word;
}

bool check_pages(Descriptor& d) {
  const Pages pages = ChunkPages(d).in_use();
  for (unsigned page = pages.first; page < pages.end; ++page) {
    // relaxed: nothing is in flight
    const bool resident = (d.resident(page / 64).load(order::relaxed) >> page % 64 & 1) != 0;
    const bool dirty = (d.dirty(page / 64).load(order::relaxed) >> page % 64 & 1) != 0;  // relaxed: nothing's in flight
    if (dirty != (resident && is_free(d, page))) return false;
  }
  return true;
}

}  // namespace

bool check_bin(Store& store, BinId bin) {
  bool good = true;
  visit_chunks(store, bin, [&](Descriptor& d) {
    good = d.sealed() && check_pages(d);
    for (unsigned folio = 0; good && folio < d.info().folios; ++folio) good = check_folio(d, folio);
    return good;
  });
  return good;
}

}  // namespace folio
