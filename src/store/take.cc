// Takes objects of one chunk.
//
//   take_from_chunk -> take_from_folio             -> set_bits (occupancy), note_taken (residency), put_addresses
//   take_resident_of -> take_empty_of, take_dirty_of -> take_resident_in -> the same
#include "store/take.h"

#include "os/os.h"
#include "space/room.h"
#include "store/occupancy.h"
#include "store/residency.h"

namespace folio {

namespace {

// The addresses of a folio's objects `mine`, ascending; returns how many. Neighbours, as all of a folio that was empty,
// take 4 instructions each in place of 8.
unsigned put_addresses(const Descriptor& d, unsigned folio, uint64_t mine, void** objects) {
  const size_t size = d.info().size;
  char* const first = d.slot(folio * kFolioObjects);
  void** to = objects;
  if (in_one_run(mine)) {
    char* next = first + lowest_bit(mine) * size;
    for (const char* const last = first + highest_bit(mine) * size; next <= last; next += size) *to++ = next;
  } else {
    for (; mine != 0; mine &= mine - 1) *to++ = first + lowest_bit(mine) * size;
  }
  return static_cast<unsigned>(to - objects);
}

// *why changes if the folio has free objects that cannot be used: not committed, or not resident near a limit.
void take_from_folio(Descriptor& d, unsigned folio, Fullness peeked, Taking& t, Commit* why) {
  const BinInfo& info = d.info();
  const uint64_t valid = valid_in(info, folio);
  const uint64_t now = d.occupancy(info, folio).load(order::relaxed);  // relaxed: a guess, the fetch_or decides
  const uint64_t free = fullness_of(now, valid) == peeked ? valid & ~now : 0;
  if (free == 0) {
    lower_folio(d, folio, peeked);
    return;
  }
  if (t.enough_before(now)) return void(t.end());
  const unsigned want = t.want - t.got;
  // Of a purged folio, resident objects first. (Of objects of a page and more take_resident has tried these.)
  const bool purged = now != 0 && was_purged(d) && !has_pages_of_its_own(info);
  uint64_t there = purged ? resident_objects(d, folio, free) : 0;
  // Near a limit, resident objects only.
  const bool tight = !has_room(want * size_t{info.size} + os::page_bytes());
  if (tight) there = resident_objects(d, folio, free);
  if (tight && there == 0) {
    *why = Commit::kRefused;
    return;
  }
  Commit result;
  const uint64_t choice = commit_objects(d, folio, lowest_bits(there != 0 ? there : free, want), &result);
  if (choice == 0) {
    *why = result;
    return;
  }
  const uint64_t before = set_bits(d, folio, choice);
  const uint64_t mine = choice & ~before;
  if (fullness_of(before | choice, valid) != peeked) lower_folio(d, folio, peeked);
  if (mine == 0) return;
  note_taken(d, folio, mine);
  t.add(put_addresses(d, folio, mine, t.next()));
}

}  // namespace

void take_from_chunk(Descriptor& d, Fullness fullness, Taking& t, Commit* why) {
  for (int folio = 0; !t.done() && *why == Commit::kDone;) {
    // From the last folio on: those below are used up, or were raised again since, for the next call.
    folio = find_folio(d, fullness, static_cast<unsigned>(folio));
    if (folio < 0) {
      lower_chunk(d, fullness);
      break;
    }
    take_from_folio(d, static_cast<unsigned>(folio), fullness, t, why);
  }
}

namespace {

// The first bit set at or behind `from` in a row of words, one bit a page, or the row's end.
template <class WordAt>
unsigned next_page(unsigned from, WordAt&& word_at) {
  for (unsigned w = from / 64; w < kPageWords; ++w) {
    const uint64_t rest = word_at(w) & ~low_mask(w == from / 64 ? from % 64 : 0);
    if (rest != 0) return w * 64 + lowest_bit(rest);
  }
  return kPageWords * 64;
}
unsigned next_dirty(Descriptor& d, unsigned from) {
  return next_page(from, [&](unsigned w) { return d.dirty(w).load(order::relaxed); });  // relaxed: a guess
}
unsigned next_resident(Descriptor& d, unsigned from) {
  return next_page(from, [&](unsigned w) { return d.resident(w).load(order::relaxed); });  // relaxed: a guess
}

// Takes free objects of a folio whose pages are all resident. Returns how many.
unsigned take_resident_in(Descriptor& d, unsigned folio, Taking& t) {
  const uint64_t now = d.occupancy(folio).load(order::relaxed), valid = d.valid(folio);  // relaxed: set_bits decides
  if (t.enough_before(now)) return t.end();
  const uint64_t choice = lowest_bits(resident_objects(d, folio, valid & ~now), t.want - t.got);
  if (choice == 0) return 0;
  const uint64_t before = set_bits(d, folio, choice), mine = choice & ~before;
  const Fullness was = fullness_of(before, valid);
  if (was != kFull && fullness_of(before | choice, valid) != was) lower_folio(d, folio, was);
  if (mine == 0) return 0;
  note_taken(d, folio, mine);
  return t.add(put_addresses(d, folio, mine, t.next()));
}

// The same of all folios that are empty, from the lowest on: neighbours follow each other, as programs then find them
// where the processor has fetched them ahead. (When folios on pages of which others are in use came last, a walk over
// 2^20 fresh nodes of a tree took 1.2 to 1.5 times as long.)
unsigned take_empty_of(Descriptor& d, Taking& t) {
  const ChunkPages chunk(d);
  unsigned got = 0, folio = 0;
  for (int next; !t.done() && (next = find_folio(d, kEmpty, folio)) >= 0;) {
    folio = static_cast<unsigned>(next);
    const unsigned page = chunk.of(folio * kFolioObjects).first, there = next_resident(d, page);
    if (there == kPageWords * 64) break;
    const unsigned on = chunk.on({there, there + 1}).first / kFolioObjects;
    if (there != page && on > folio) {
      folio = on;
      continue;
    }
    // relaxed: the second look of lower_folio decides
    if (d.occupancy(folio).load(order::relaxed) != 0) {
      lower_folio(d, folio, kEmpty);
    } else {
      got += take_resident_in(d, folio, t);
    }
    ++folio;
  }
  return got;
}

// The same of any folio, on dirty pages.
unsigned take_dirty_of(Descriptor& d, Taking& t) {
  const ChunkPages chunk(d);
  unsigned got = 0, folio = 0;
  for (unsigned page = next_dirty(d, 0); page < kPageWords * 64 && !t.done();) {
    const Objects on = chunk.on({page, page + 1});
    if (folio < on.first / kFolioObjects) folio = on.first / kFolioObjects;
    for (; folio * kFolioObjects < on.end && !t.done(); ++folio) got += take_resident_in(d, folio, t);
    // Each folio once, though it may have more than one such page.
    if (folio == d.info().folios) break;
    const unsigned next = chunk.of(folio * kFolioObjects).first;
    page = next_dirty(d, next > page ? next : page + 1);
  }
  return got;
}

}  // namespace

unsigned take_resident_of(Descriptor& d, Taking& t) {
  const unsigned got = has_pages_of_its_own(d.info()) ? 0 : take_empty_of(d, t);
  // Of smaller objects, too: near a limit a folio in use may have been left, as its other pages would fault.
  return got != 0 || t.done() ? got : take_dirty_of(d, t);
}

}  // namespace folio
