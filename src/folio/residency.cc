#include "folio/residency.h"

#include "folio/bin.h"
#include "os/os.h"
#include "space/pages.h"
#include "space/room.h"

namespace folio {

namespace {

int64_t bytes_of(unsigned objects, const BinInfo& info) { return int64_t{objects} * info.size; }

size_t unit_bytes(const BinInfo& info) { return (size_t{info.size} * kFolioObjects) << unit_shift(info); }

uint64_t bit_of(unsigned unit) { return uint64_t{1} << unit % 64; }

}  // namespace

namespace {

// [commit] acquire: after the kernel has made it writable; pairs with commit_range.
size_t committed_bytes(const Descriptor& d) { return size_t{d.committed.load(order::acquire)} * kPageBytesLeast; }

bool commit_range(Descriptor& d, size_t from, size_t to) {
  if (!os::commit(d.chunk() + from, to - from)) return false;
  // [commit] release: who sees it may write there; pairs with committed_bytes. Of two at once the one that got less far
  // may be the last: then some is committed once more.
  d.committed.store(static_cast<uint16_t>(to / kPageBytesLeast), order::release);
  return true;
}

// Commits the chunk up to `end`, a whole page, and as much again as it has, so that it takes few steps. The colour
// comes with the last step, so that neighbours' mappings merge.
bool commit_to(Descriptor& d, size_t end) {
  constexpr size_t kStepLeast = size_t{64} << 10;
  const size_t have = committed_bytes(d);
  if (end <= have) return true;
  const auto first = static_cast<size_t>(d.first - d.chunk());
  const size_t from = have == 0 ? first : have;
  const size_t step = from - first < kStepLeast ? kStepLeast : from - first;
  const size_t wanted = end > from + step ? end : from + step;
  const bool last = wanted >= first + size_t{d.info().objects} * d.info().size;
  return (last ? commit_chunk(d) : commit_range(d, from, wanted)) || commit_range(d, from, end);
}

}  // namespace

bool commit_chunk(Descriptor& d) { return commit_range(d, 0, kChunkBytes); }

namespace {

// Of free objects of a folio those whose pages are there: all that there are where there is no room for more.
uint64_t resident_objects(Descriptor& d, unsigned folio, uint64_t choice) {
  const BinInfo& info = d.info();
  const unsigned unit = folio >> unit_shift(info);
  // Relaxed: a guess; what is purged meanwhile comes back as new pages.
  if (info.tracks_objects) return choice & d.resident(folio).load(order::relaxed);
  return (d.resident(unit / 64).load(order::relaxed) & bit_of(unit)) != 0 ? choice : 0;  // relaxed: as above
}

}  // namespace

uint64_t commit_objects(Descriptor& d, unsigned folio, uint64_t choice) {
  if (!has_room(d.info().tracks_objects ? popcount(choice) * size_t{d.info().size} : unit_bytes(d.info()))) {
    choice = resident_objects(d, folio, choice);
    if (choice == 0) return 0;
  }
  const size_t size = d.info().size, page = os::page_bytes(), before = size_t{folio} * kFolioObjects;
  const auto first = static_cast<size_t>(d.first - d.chunk());
  const auto commit_up_to = [&](unsigned bit) {
    return commit_to(d, round_up(first + (before + bit + 1) * size, page));
  };
  if (commit_up_to(highest_bit(choice))) return choice;
  commit_up_to(lowest_bit(choice));
  const size_t have = committed_bytes(d);
  const size_t usable = have < first ? 0 : (have - first) / size;
  return usable <= before ? 0 : choice & low_mask(static_cast<unsigned>(usable - before < 64 ? usable - before : 64));
}

unsigned unit_shift(const BinInfo& info) {
  // A folio is 64 * size bytes. The fewest folios that make whole pages are a power of two of them.
  const unsigned page_shift = lowest_bit(os::page_bytes());
  const unsigned folio_shift = lowest_bit(uint64_t{info.size} * kFolioObjects);
  return folio_shift >= page_shift ? 0 : page_shift - folio_shift;
}

unsigned units_of(const BinInfo& info) {
  const unsigned shift = unit_shift(info);
  return (info.folios + (1u << shift) - 1) >> shift;
}

Unit unit_at(const BinInfo& info, unsigned unit) {
  const unsigned shift = unit_shift(info), first = unit << shift, rest = info.folios - first;
  return {first, rest < (1u << shift) ? rest : 1u << shift};
}

void release_unit(Descriptor& d, Unit unit) {
  for (unsigned i = 0; i < unit.folios; ++i) clear_bits(d, unit.first + i, d.valid(unit.first + i));
}

bool claim_unit(Descriptor& d, Unit unit) {
  for (unsigned i = 0; i < unit.folios; ++i) {
    uint64_t empty = 0;
    // [object] acquire: the pages are no longer used; pairs with clear_bits.
    if (!d.occupancy(unit.first + i).compare_exchange(empty, d.valid(unit.first + i), order::acquire)) {
      release_unit(d, {unit.first, i});
      return false;
    }
  }
  return true;
}

uint64_t note_taken_objects(Descriptor& d, unsigned folio, uint64_t mine) {
  // Relaxed: the bits change only while their objects are taken, by the taker, or claimed, by a purge; both take them
  // from each other through the occupancy word.
  Word& resident = d.resident(folio);
  uint64_t fresh = mine & ~resident.load(order::relaxed);
  if (fresh != 0) {
    resident.fetch_or(fresh, order::relaxed);  // relaxed: see above
    count_resident(bytes_of(popcount(fresh), d.info()));
  }
  if (fresh != mine) count_dirty(-bytes_of(popcount(mine & ~fresh), d.info()));
  Word& aged = d.aged(folio);
  if ((aged.load(order::relaxed) & mine) != 0) aged.fetch_and(~mine, order::relaxed);  // relaxed: see above
  return fresh;
}

namespace {

// A page that comes by a fault of its own costs about twice as much as one of sixteen that come at once (measured). So
// the pages from `unit` on come together, as many as are a sixteenth of what lies below them in the chunk, all of which
// was wanted before them. (A heap of 200 MiB without huge pages grows in 5 to 12 % less time.) Only of objects so
// small that every use of one touches its page. Rejected: to ask the kernel whether the pages below are there
// (mincore), which sandboxes answer by killing, and which cost 5 % of that time.
constexpr unsigned kAheadShift = 4;
constexpr size_t kAheadMost = size_t{64} << 10;
constexpr size_t kAheadObjectMost = 1024;

void touch_ahead(Descriptor& d, unsigned unit) {
  const BinInfo& info = d.info();
  const size_t each = unit_bytes(info), offset = unit * each;
  const size_t wanted = offset >> kAheadShift < kAheadMost ? offset >> kAheadShift : kAheadMost;
  // The last unit may be a part of one.
  const size_t left = round_up(size_t{info.objects} * info.size, os::page_bytes()) - offset;
  const size_t bytes = wanted < left ? round_down(wanted, os::page_bytes()) : left;
  if (bytes <= os::page_bytes()) return;
  if (!commit_to(d, static_cast<size_t>(d.first - d.chunk()) + offset + bytes)) return;
  // Units that nobody has, claimed while their pages come. Not the last one, which may end within a page.
  const unsigned units = units_of(info);
  unsigned end = unit + 1;
  while (end * each < offset + bytes && end + 1 < units &&
         (d.resident(end / 64).load(order::relaxed) & bit_of(end)) == 0 &&  // relaxed: a guess, the claim decides
         claim_unit(d, unit_at(info, end))) {
    ++end;
  }
  const size_t reach = end * each - offset;
  const bool there = os::populate(d.first + offset, bytes < reach ? bytes : reach);
  for (unsigned u = unit + 1; u < end; ++u) {
    // Relaxed: the claim is held; the next taker comes after its release.
    if (there && (d.resident(u / 64).fetch_or(bit_of(u), order::relaxed) & bit_of(u)) == 0) {
      count_resident(static_cast<int64_t>(each));
      count_dirty(static_cast<int64_t>(each));
    }
    release_unit(d, unit_at(info, u));
  }
  if (there && end > unit + 1) raise_chunk(d, kDirty);
}

// A chunk of huge pages of which nothing was there: the first touch brings all of it, and what is not used of it is
// dirty, as in a new one. Units that others take meanwhile count once, by who sets their bit.
void note_huge_page_back(Descriptor& d, unsigned unit) {
  const unsigned units = units_of(d.info());
  for (unsigned w = 0; w * 64 < units; ++w) {
    const uint64_t own = w == unit / 64 ? bit_of(unit) : 0;
    if (d.resident(w).load(order::relaxed) != own) return;  // relaxed: a guess
  }
  int64_t bytes = 0;
  for (unsigned u = 0; u < units; ++u) {
    // Relaxed: see note_taken_folio.
    if ((d.resident(u / 64).fetch_or(bit_of(u), order::relaxed) & bit_of(u)) != 0) continue;
    bytes += bytes_of(unit_at(d.info(), u).folios * kFolioObjects, d.info());
  }
  count_resident(bytes);
  count_dirty(bytes);
  raise_chunk(d, kDirty);
}

}  // namespace

void note_taken_folio(Descriptor& d, unsigned folio) {
  const BinInfo& info = d.info();
  const unsigned unit = folio >> unit_shift(info);
  const uint64_t bit = bit_of(unit);
  Word& resident = d.resident(unit / 64);
  Word& aged = d.aged(unit / 64);
  if ((aged.load(order::relaxed) & bit) != 0) aged.fetch_and(~bit, order::relaxed);  // relaxed: as below
  // Relaxed: a purge clears the bit only while it holds every folio of the unit; the caller holds an object of one.
  const bool was_resident = (resident.load(order::relaxed) & bit) != 0 ||
                            (resident.fetch_or(bit, order::relaxed) & bit) != 0;  // relaxed: see above
  if (was_resident) return count_dirty(-bytes_of(kFolioObjects, info));
  const unsigned folios = unit_at(info, unit).folios;
  count_resident(bytes_of(folios * kFolioObjects, info));
  // Its neighbours are free and resident.
  if (folios > 1) count_dirty(bytes_of((folios - 1) * kFolioObjects, info));
  if (d.huge_pages) return note_huge_page_back(d, unit);
  if (info.size <= kAheadObjectMost && !room_is_tight()) touch_ahead(d, unit);
}

void note_all_resident(Descriptor& d) {
  const BinInfo& info = d.info();
  const unsigned bits = units_of(info);
  for (unsigned w = 0; w * 64 < bits; ++w) {
    d.resident(w).store(low_mask(bits - w * 64), order::relaxed);  // relaxed: published with the chunk
  }
  const int64_t bytes = bytes_of(info.folios * kFolioObjects, info);
  count_resident(bytes);
  count_dirty(bytes);
}

}  // namespace folio
