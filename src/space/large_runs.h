// Runs of granules in one field: found, taken, cleared, and the hints that tell of them. For large.cc, large_fields.cc
// and large_purge.cc; the protocol is drawn in large.h, the rule of the hints in large_index.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/bits.h"
#include "os/os.h"
#include "space/field.h"
#include "space/large_index.h"
#include "space/pages.h"

namespace folio {

inline char* granule_at(const Field& f, unsigned g) { return f.base + (size_t{g} << kGranuleShift); }
inline int64_t bytes_in(unsigned granules) { return int64_t{granules} << kGranuleShift; }

// Where pages are larger than granules, objects are whole pages.
inline unsigned granules_a_page() {
  const size_t page = os::page_bytes();
  return page <= kGranuleBytes ? 1 : static_cast<unsigned>(page >> kGranuleShift);
}

inline uint64_t free_in(Field& f, unsigned w) {
  // [room] seq_cst: this may be the second look after a hint was lowered; pairs with clear.
  return ~f.occupancy(w).load(order::seq_cst);
}
// Granules that are free and resident. The occupancy is read first: the resident bits are set before granules are
// given.
inline uint64_t ready_in(Field& f, unsigned w) {
  const uint64_t free = free_in(f, w);
  return free & f.resident(w).load(order::relaxed);  // relaxed: ordered by that look, else a guess
}

// A free run for `count` granules, at a multiple of `step`, in these words: of the first ones that there are the one
// with the fewest pages to touch anew, of equal ones the shortest, then the lowest. False if there is none.
bool find_run(Field& f, unsigned count, unsigned step, unsigned* from, uint64_t words = ~uint64_t{0});

// The lowest place for `count` granules whose pages are all there.
bool find_ready_run(Field& f, unsigned count, unsigned step, unsigned* from);

// How many of these granules are there.
unsigned count_resident_in(Field& f, unsigned from, unsigned count);

// Takes the run, or nothing of it.
bool set(Field& f, unsigned from, unsigned count);

// Gives what the caller has taken, and raises the hints that it asks for.
void clear(Field& f, unsigned from, unsigned count);
// The same for granules of one word.
void clear_word(Field& f, unsigned w, uint64_t granules);

// After a search that found no run of `count`: lowers the hint to the longest run. Returns whether there is one of
// `count` by now.
bool learn_room(Field& f, Room r, unsigned count);

// Raises every hint of the field, and those of its group and block, as high as can be.
void raise_all(Field& f);

// After the word, or all words, were found without dirty granules: lowers the mark, looks again, and raises it if that
// finds some.
void settle_word(Field& f, unsigned w);
void settle_field(Field& f);

// Which of the dirty granules of a word were dirty at the last large_age().
uint64_t aged_in(Field& f, unsigned w, uint64_t dirty);

}  // namespace folio
