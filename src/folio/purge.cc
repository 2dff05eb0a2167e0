#include "folio/purge.h"

#include "folio/bin.h"
#include "folio/residency.h"
#include "os/os.h"
#include "space/pages.h"

namespace folio {

namespace {

// Which bits of a word of residency a purge may take now.
uint64_t candidates(const Word& resident, const Word& aged, uint64_t free, PurgeWhich which) {
  const uint64_t all = resident.load(order::relaxed) & free;  // relaxed: a guess, the claim decides
  // relaxed: marks only delay or hasten a purge
  return which == PurgeWhich::kAll ? all : all & aged.load(order::relaxed);
}

// ---- Objects smaller than a page: whole units ----

bool looks_empty(Descriptor& d, Unit unit) {
  for (unsigned i = 0; i < unit.folios; ++i) {
    // [hint] seq_cst: the second look after the dirty hint was lowered; pairs with clear_bits.
    if (d.occupancy(unit.first + i).load(order::seq_cst) != 0) return false;
  }
  return true;
}

// Purges units [from, to), which are claimed, and gives them back. 0 if the kernel refused.
size_t purge_run(Descriptor& d, unsigned from, unsigned to) {
  const unsigned first = unit_at(d.info(), from).first;
  const Unit last = unit_at(d.info(), to - 1);
  const unsigned folios = last.first + last.folios - first;
  const size_t folio_bytes = size_t{d.info().size} * kFolioObjects;
  char* const chunk_end = d.chunk() + kChunkBytes;
  char* start = d.first + first * folio_bytes;
  char* end = d.first + round_up((first + folios) * folio_bytes, os::page_bytes());
  if (end > chunk_end) end = chunk_end;
  // Of huge pages, what lies before the first object and behind the last one is resident too.
  if (d.huge_pages && first == 0) start = d.chunk();
  if (d.huge_pages && first + folios == d.info().folios) end = chunk_end;
  const auto bytes = static_cast<size_t>(end - start);
  const bool gone = purge_pages(start, bytes);
  for (unsigned unit = from; unit < to; ++unit) {
    const uint64_t bit = uint64_t{1} << unit % 64;
    // Relaxed: the claim is held; the next taker comes after its release.
    if (gone) d.resident(unit / 64).fetch_and(~bit, order::relaxed);
    d.aged(unit / 64).fetch_and(~bit, order::relaxed);  // relaxed: as above
    release_unit(d, unit_at(d.info(), unit));
  }
  if (!gone) return 0;
  count_resident(-static_cast<int64_t>(folios * folio_bytes));
  count_dirty(-static_cast<int64_t>(folios * folio_bytes));
  return bytes;
}

// What is left after one pass over a chunk.
struct Left {
  bool more = false;     // something free and resident that was not tried
  bool refused = false;  // or that the kernel has refused to take
};

size_t purge_units(Descriptor& d, PurgeWhich which, size_t most_bytes, Left* left) {
  const unsigned shift = unit_shift(d.info());
  const unsigned units = units_of(d.info());
  const size_t unit_bytes = (size_t{d.info().size} * kFolioObjects) << shift;
  // To give back a part of a huge page costs a split of it, and its page tables; the whole is one step for the kernel.
  const unsigned run_most = d.huge_pages ? units : static_cast<unsigned>(kPurgeRunBytes / unit_bytes) + 1;
  size_t purged = 0;
  unsigned run_start = 0, run_length = 0;
  for (unsigned unit = 0; unit < units; ++unit) {
    const unsigned w = unit / 64;
    const uint64_t bit = uint64_t{1} << unit % 64;
    bool take = false;
    // Occupancy first: what its giver made resident is then seen. Relaxed: ordered by that look.
    if (looks_empty(d, unit_at(d.info(), unit)) && (d.resident(w).load(order::relaxed) & bit) != 0) {
      take = purged < most_bytes && candidates(d.resident(w), d.aged(w), bit, which) != 0 &&
             claim_unit(d, unit_at(d.info(), unit));
      if (!take) left->more = true;
    }
    if (take && run_length == 0) run_start = unit;
    if (take) ++run_length;
    if (run_length != 0 && (!take || run_length == run_most || unit + 1 == units)) {
      const size_t gone = purge_run(d, run_start, run_start + run_length);
      if (gone == 0) left->refused = true;
      purged += gone;
      run_length = 0;
    }
  }
  return purged;
}

// ---- Objects of a page and more: the whole pages of free runs ----

// Purges the pages inside objects [from, to) of a folio, all claimed.
size_t purge_objects_run(Descriptor& d, unsigned from, unsigned to, bool* gone) {
  const size_t page = os::page_bytes();
  const auto start = round_up(reinterpret_cast<uintptr_t>(d.slot(from)), page);
  const auto slots_end = reinterpret_cast<uintptr_t>(d.slot(to));
  // Nobody else uses the page in which the last slot of the chunk ends.
  const auto end = to == d.info().objects ? round_up(slots_end, page) : round_down(slots_end, page);
  size_t purged = 0;
  for (uintptr_t at = start; at < end; at += kPurgeRunBytes) {
    const size_t bytes = end - at < kPurgeRunBytes ? end - at : kPurgeRunBytes;
    if (purge_pages(reinterpret_cast<void*>(at), bytes)) {
      purged += bytes;
    } else {
      *gone = false;
    }
  }
  return purged;
}

size_t purge_folio(Descriptor& d, unsigned folio, PurgeWhich which, Left* left) {
  Word& word = d.occupancy(folio);
  Word& resident = d.resident(folio);
  const uint64_t valid = d.valid(folio);
  const uint64_t free = valid & ~word.load(order::relaxed);  // relaxed: a guess; purge_objects looks again
  if (candidates(resident, d.aged(folio), free, which) == 0) return 0;
  const uint64_t mine = free & ~set_bits(d, folio, free);
  const uint64_t were_resident = resident.load(order::relaxed) & mine;  // relaxed: the claim is held
  bool gone = true;
  size_t purged = 0;
  // Runs of claimed neighbours, not only of resident ones: the page that two objects share goes with the later of them.
  for (uint64_t rest = mine; rest != 0;) {
    const unsigned from = lowest_bit(rest);
    const uint64_t after = ~rest >> from;
    const unsigned length = after == 0 ? 64 - from : lowest_bit(after);
    const uint64_t run = low_mask(length) << from;
    if ((run & were_resident) != 0) {
      // One neighbour more on either side: its end of a shared page.
      unsigned first = lowest_bit(run & were_resident), last = highest_bit(run & were_resident);
      if (first > from) --first;
      if (last + 1 < from + length) ++last;
      purged += purge_objects_run(d, folio * kFolioObjects + first, folio * kFolioObjects + last + 1, &gone);
    }
    rest &= ~run;
  }
  if (!gone) left->refused = true;
  if (gone && were_resident != 0) {
    resident.fetch_and(~were_resident, order::relaxed);  // relaxed: the claim is held
    const int64_t bytes = int64_t{popcount(were_resident)} * d.info().size;
    count_resident(-bytes);
    count_dirty(-bytes);
  }
  d.aged(folio).fetch_and(~mine, order::relaxed);  // relaxed: a mark only
  clear_bits(d, folio, mine);
  return purged;
}

size_t purge_objects(Descriptor& d, PurgeWhich which, size_t most_bytes, Left* left) {
  size_t purged = 0;
  for (unsigned folio = 0; folio < d.info().folios; ++folio) {
    Left here;
    if (purged < most_bytes) purged += purge_folio(d, folio, which, &here);
    if (here.refused) {
      left->refused = true;
      continue;
    }
    // [hint] seq_cst: the second look after the dirty hint was lowered; pairs with clear_bits.
    const uint64_t taken = d.occupancy(folio).load(order::seq_cst);
    if ((d.resident(folio).load(order::relaxed) & ~taken) != 0) left->more = true;  // relaxed: ordered by that look
  }
  return purged;
}

size_t purge_chunk(Descriptor& d, PurgeWhich which, size_t most_bytes, unsigned* refused) {
  // The hint is lowered before the look: whatever is freed after it raises it again.
  lower_chunk(d, kDirty);
  Left left;
  const size_t purged =
      d.info().tracks_objects ? purge_objects(d, which, most_bytes, &left) : purge_units(d, which, most_bytes, &left);
  if (left.more) raise_chunk(d, kDirty);
  // What the kernel refused, as it does for locked pages, does not raise the hint: it is tried again when something of
  // the chunk is freed, or by retry_refused.
  if (left.refused) {
    ++*refused;
    bins[index(d.bin)].refused.store(true, order::relaxed);  // relaxed: a hint, for who gives back all
  }
  return purged;
}

void age_chunk(Descriptor& d) {
  if (d.info().tracks_objects) {
    for (unsigned folio = 0; folio < d.info().folios; ++folio) {
      // Relaxed: marks only delay or hasten a purge.
      const uint64_t free = d.resident(folio).load(order::relaxed) & ~d.occupancy(folio).load(order::relaxed);
      if (free != 0) d.aged(folio).fetch_or(free, order::relaxed);
    }
    return;
  }
  const unsigned shift = unit_shift(d.info());
  for (unsigned unit = 0; unit << shift < d.info().folios; ++unit) {
    const uint64_t bit = uint64_t{1} << unit % 64;
    // Relaxed: as above.
    // relaxed: a mark
    if ((d.resident(unit / 64).load(order::relaxed) & bit) != 0 && looks_empty(d, unit_at(d.info(), unit))) {
      d.aged(unit / 64).fetch_or(bit, order::relaxed);  // relaxed: as above
    }
  }
}

// Calls visit(descriptor) for the chunks of a bin whose dirty hint is raised, until it returns false.
template <class Visit>
bool visit_dirty(unsigned bin, Visit&& visit) {
  // [blocks] acquire: pairs with block_for.
  for (HintBlock* block = bins[bin].blocks.load(order::acquire); block != nullptr; block = block->next) {
    for (unsigned slot = 0; slot < kWindowChunks;) {
      Descriptor* d = find_chunk(*block, kDirty, slot);
      if (d == nullptr) break;
      if (!visit(*d)) return false;
      slot = window_slot(d->first) + 1;
    }
  }
  return true;
}

// Where the next purge starts, so that no bin is always last.
constinit Atomic<unsigned> next_bin{0};

}  // namespace

size_t purge_bins(PurgeWhich which, size_t most_bytes) {
  const unsigned refused_most = most_bytes == ~size_t{0} ? ~0u : 64;
  const unsigned first = next_bin.load(order::relaxed);  // relaxed: a starting point
  size_t purged = 0;
  unsigned refused = 0;  // chunks
  for (unsigned i = 0; i < kBins - 1; ++i) {
    const unsigned bin = (first + i) % (kBins - 1);
    const bool all = visit_dirty(bin + 1, [&](Descriptor& d) {
      purged += purge_chunk(d, which, most_bytes - purged, &refused);
      return purged < most_bytes && refused < refused_most;
    });
    if (!all) {
      next_bin.store(bin, order::relaxed);  // relaxed: a starting point
      break;
    }
  }
  return purged;
}

void retry_refused() {
  for (unsigned bin = 1; bin < kBins; ++bin) {
    if (!bins[bin].refused.exchange(false, order::relaxed)) continue;  // relaxed: as above
    visit_chunks(bin_id(bin), [](Descriptor& d) {
      raise_chunk(d, kDirty);
      return true;
    });
  }
}

void age_bins() {
  for (unsigned bin = 1; bin < kBins; ++bin) {
    visit_dirty(bin, [](Descriptor& d) {
      age_chunk(d);
      return true;
    });
  }
}

}  // namespace folio
