#include "space/large.h"

#include "base/bits.h"
#include "os/os.h"
#include "space/chunk_table.h"
#include "space/metadata.h"
#include "space/pages.h"

namespace folio {

constinit Atomic<Field*> fields{nullptr};

namespace {

char* granule_at(const Field& f, unsigned g) { return f.base + (size_t{g} << kGranuleShift); }
unsigned granule_of(const Field& f, const void* address) {
  return static_cast<unsigned>((static_cast<const char*>(address) - f.base) >> kGranuleShift);
}
int64_t bytes_in(unsigned granules) { return int64_t{granules} << kGranuleShift; }

// Where pages are larger than granules, objects are whole pages.
unsigned granules_a_page() {
  const size_t page = os::page_bytes();
  return page <= kGranuleBytes ? 1 : static_cast<unsigned>(page >> kGranuleShift);
}

unsigned granules_for(size_t bytes) {
  return static_cast<unsigned>(round_up(bytes, kGranuleBytes * granules_a_page()) >> kGranuleShift);
}

// Calls visit(word, mask, first granule) for the words of a run, in ascending order, until it returns false.
template <class Visit>
void visit_words(unsigned from, unsigned count, Visit&& visit) {
  while (count != 0) {
    const unsigned bit = from % 64, length = 64 - bit < count ? 64 - bit : count;
    if (!visit(from / 64, low_mask(length) << bit, from)) return;
    from += length;
    count -= length;
  }
}

// ---- Runs ----

// The first granule from `at` on whose occupancy (or its contrary) is set, or `end`. [hint] seq_cst: this may be the
// second look after `longest` was lowered; pairs with clear.
template <class Load>
unsigned next_bit(Load&& load, unsigned at, unsigned end) {
  while (at < end) {
    const uint64_t word = load(at / 64) >> at % 64;
    if (word != 0) {
      at += lowest_bit(word);
      return at < end ? at : end;
    }
    at = (at / 64 + 1) * 64;
  }
  return end;
}

// Where the free run begins that ends before `at`, but not below `least`.
unsigned run_start(Field& f, unsigned at, unsigned least) {
  while (at > least) {
    const unsigned bits = (at - 1) % 64 + 1;
    // [hint] seq_cst: before `longest` is looked at; pairs with lower_longest.
    const uint64_t taken = f.occupancy((at - 1) / 64).load(order::seq_cst) & low_mask(bits);
    if (taken != 0) {
      const unsigned start = (at - 1) / 64 * 64 + highest_bit(taken) + 1;
      return start > least ? start : least;
    }
    at -= bits;
  }
  return least;
}

unsigned count_resident_in(Field& f, unsigned from, unsigned count) {
  unsigned n = 0;
  visit_words(from, count, [&](unsigned w, uint64_t mask, unsigned) {
    n += popcount(f.resident(w).load(order::relaxed) & mask);  // relaxed: a guess
    return true;
  });
  return n;
}

struct Run {
  unsigned from, missing, length;  // missing: granules to touch anew; length: of the free run
  bool better(const Run& than) const {
    if (missing != than.missing) return missing < than.missing;
    return length != than.length ? length < than.length : from < than.from;
  }
};

// The best run for `count` granules, at a multiple of `step`, in these words. False if there is none; *longest is then
// how long the longest one was. In a free run, the place that misses fewest is at its start, where resident granules
// begin, or where they end.
bool find_run(Field& f, unsigned count, unsigned step, Run* best, unsigned* longest, uint64_t words = ~uint64_t{0}) {
  const auto taken = [&](unsigned w) {
    return (words >> w & 1) == 0 ? ~uint64_t{0} : f.occupancy(w).load(order::seq_cst);  // [hint] seq_cst: see next_bit
  };
  const auto free = [&](unsigned w) { return ~taken(w); };
  const auto resident = [&](unsigned w) { return f.resident(w).load(order::relaxed); };  // relaxed: a guess
  const auto missing = [&](unsigned w) { return ~resident(w); };
  bool found = false;
  *longest = 0;
  for (unsigned at = 0; (at = next_bit(free, at, f.granules)) < f.granules;) {
    const unsigned end = next_bit(taken, at, f.granules);
    if (end - at > *longest) *longest = end - at;
    const auto consider = [&](size_t from) {
      if (from < at || from + count > end) return;
      const auto place = static_cast<unsigned>(from);
      const Run run = {place, count - count_resident_in(f, place, count), end - at};
      if (!found || run.better(*best)) *best = run;
      found = true;
    };
    // Nothing more in this free run is better.
    const auto settled = [&] { return found && best->missing == 0 && end - at >= best->length; };
    if (end - at >= count && !settled()) {
      consider(round_up(at, step));
      for (unsigned low = at; !settled() && (low = next_bit(resident, low, end)) < end;) {
        const unsigned high = next_bit(missing, low, end);
        consider(round_up(low, step));
        if (high - at >= count) consider(round_down(high - count, step));
        low = high;
      }
      if (found && best->missing == 0 && best->length == count) return true;
    }
    at = end;
  }
  return found;
}

// Hints: relaxed, and not exact under races. One that is too low costs a longer search; one that is too high is passed
// by find_run, which looks everywhere, before a field is opened. Longer runs begin no lower than shorter ones.
void raise_ready(Field& f, unsigned count, unsigned word) {
  for (unsigned i = count - 1; i < 64 && f.ready_from[i].load(order::relaxed) < word; ++i) {
    f.ready_from[i].store(static_cast<uint8_t>(word), order::relaxed);  // relaxed: see above
  }
}
void lower_ready(Field& f, unsigned length, unsigned word) {
  // Relaxed: see above.
  for (unsigned i = length < 64 ? length : 64; i-- != 0 && f.ready_from[i].load(order::relaxed) > word;) {
    f.ready_from[i].store(static_cast<uint8_t>(word), order::relaxed);  // relaxed: see above
  }
}

// The lowest place for `count` granules whose pages are all there: a better one could only be tighter, and to look for
// the tightest took three times as long (100 objects of 33 to 100 KB by turns: 291 ns a pair in place of 108), in 2 %
// less memory.
bool find_resident_run(Field& f, unsigned count, unsigned step, unsigned* from) {
  const bool exact = count <= 64 && step == 1;  // what the hint is about
  // Relaxed: guesses, set() decides.
  const auto ready = [&](unsigned w) {
    return f.resident(w).load(order::relaxed) & ~f.occupancy(w).load(order::relaxed);  // relaxed: see above
  };
  const auto other = [&](unsigned w) { return ~ready(w); };
  // Relaxed: a hint. (A search from the start took 1,600 instructions with 300 objects of 33 to 200 KB.)
  for (unsigned w = f.ready_from[(count < 64 ? count : 64) - 1].load(order::relaxed); w < f.words(); ++w) {
    const uint64_t low = ready(w);
    if (low == 0) continue;
    uint64_t starts = starts_of_runs(low, w + 1 < f.words() ? ready(w + 1) : 0, count < 64 ? count : 64);
    while (starts != 0) {
      const unsigned first = w * 64 + lowest_bit(starts);
      const size_t place = round_up(first, step), end = place + count;
      if (end > f.granules) return false;
      const unsigned reached = next_bit(other, first, static_cast<unsigned>(end));
      if (reached == end) {
        *from = static_cast<unsigned>(place);
        if (exact) raise_ready(f, count, w);
        return true;
      }
      starts = reached / 64 == w ? starts & ~low_mask(reached % 64 + 1) : 0;
    }
  }
  if (exact) raise_ready(f, count, f.words());
  return false;
}

void raise_longest(Field& f, unsigned length) {
  uint32_t now = f.longest.load(order::relaxed);  // relaxed: no older than what the caller read or wrote
  while (now < length && !f.longest.compare_exchange(now, length, order::relaxed)) {  // relaxed: the word is all
  }
}

// After these granules became free: the run that they are in, with their free neighbours, may be the longest, or the
// first one whose pages are there.
void note_free_around(Field& f, unsigned from, unsigned count) {
  // [hint] seq_cst: before `longest` is looked at; pairs with lower_longest.
  const auto taken = [&](unsigned w) { return f.occupancy(w).load(order::seq_cst); };
  // Not further than either hint needs. What is free beyond that has lowered `ready_from` before.
  // [hint] seq_cst: after the bits were cleared; pairs with lower_longest.
  const bool near = f.longest.load(order::seq_cst) == f.granules;
  const unsigned least = near && from > 64 ? from - 64 : 0, end = from + count;
  const unsigned start = run_start(f, from, least);
  const unsigned length = next_bit(taken, end, near && f.granules - end > 64 ? end + 64 : f.granules) - start;
  if (!near) raise_longest(f, length);
  lower_ready(f, length, start / 64);
}

void clear(Field& f, unsigned from, unsigned count) {
  visit_words(from, count, [&](unsigned w, uint64_t mask, unsigned) {
    // [large] release: the last use of the granules; pairs with set. [hint] seq_cst: before `longest` is looked at.
    f.occupancy(w).fetch_and(~mask, order::seq_cst);
    return true;
  });
  note_free_around(f, from, count);
}

// Takes the run, or nothing of it.
bool set(Field& f, unsigned from, unsigned count) {
  bool whole = true;
  visit_words(from, count, [&](unsigned w, uint64_t mask, unsigned first) {
    uint64_t now = f.occupancy(w).load(order::relaxed);  // relaxed: a guess
    do {
      whole = (now & mask) == 0;
      // [large] acquire: sees what the last owner wrote, and its pages' state; pairs with clear.
    } while (whole && !f.occupancy(w).compare_exchange(now, now | mask, order::acquire));
    if (!whole && first != from) clear(f, from, first - from);
    return whole;
  });
  return whole;
}

// Notes that granules which the caller has taken are in use from now on. Calls visit(first, count) for those that were
// resident. Returns whether there were any.
template <class Visit>
bool note_taken(Field& f, unsigned from, unsigned count, Visit&& visit) {
  bool any = false;
  visit_words(from, count, [&](unsigned w, uint64_t mask, unsigned first) {
    // Relaxed: both change only while their granules are taken, by the taker; the occupancy orders them.
    const uint64_t was = f.resident(w).load(order::relaxed) & mask;
    if (was != mask) {
      f.resident(w).fetch_or(mask, order::relaxed);  // relaxed: see above
      count_resident(bytes_in(popcount(mask & ~was)));
    }
    if (was != 0) {
      any = true;
      count_dirty(-bytes_in(popcount(was)), true);
      visit_runs(was, 64, [&](unsigned at, unsigned length, uint64_t) { visit(first - first % 64 + at, length); });
    }
    if ((f.aged(w).load(order::relaxed) & mask) != 0) f.aged(w).fetch_and(~mask, order::relaxed);  // relaxed: see above
    return true;
  });
  return any;
}

// Makes granules usable that the caller has taken, or is about to. False if the kernel refuses.
bool commit(Field& f, unsigned from, unsigned count) {
  const unsigned first = from / 64, words = (from + count - 1) / 64 - first + 1;
  const uint64_t wanted = low_mask(words) << first;
  // [commit] acquire: after the kernel has made them writable; pairs with the fetch_or below.
  if ((wanted & ~f.committed.load(order::acquire)) == 0) return true;
  constexpr size_t kWordBytes = 64 * kGranuleBytes;
  if (!os::commit(f.base + first * kWordBytes, words * kWordBytes)) return false;
  f.committed.fetch_or(wanted, order::release);  // [commit] release: who sees the bits may use the granules
  return true;
}

// Gives granules of an object back.
void give(Field& f, unsigned from, unsigned count) {
  count_dirty(bytes_in(count), true);
  clear(f, from, count);
}

// ---- Fields ----

void publish(Field* field) {
  Field* none = nullptr;
  // [fields] release: publishes the header; pairs with first_field and next_field.
  if (fields.compare_exchange(none, field, order::release)) return;
  for (Field* last = first_field(); last != nullptr; last = next_field(*last)) {
    none = nullptr;
    if (last->next.compare_exchange(none, field, order::release)) return;  // [fields] release: as above
  }
}

// A field in this address space, not published yet. Null if there is no memory to describe it.
Field* make_field(char* base, size_t bytes) {
  // It lies in two windows at most. Both first: what is entered stays so.
  static_assert(kFieldBytesMost <= size_t{kWindowChunks} * kChunkBytes);
  if (!chunk_table_open(base, bytes)) return nullptr;
  if (window_make(base) == nullptr || window_make(base + bytes - 1) == nullptr) return nullptr;
  const auto count = static_cast<uint32_t>(bytes >> kGranuleShift);
  auto* field = static_cast<Field*>(metadata_alloc(Field::bytes_for(count)));
  if (field == nullptr) return nullptr;
  field->base = base;
  field->granules = count;
  field->seal = Field::seal_for(base, count);
  field->longest.store(count, order::relaxed);  // relaxed: not published yet
  for (char* chunk = base; chunk != base + bytes; chunk += kChunkBytes) {
    set_chunk(window_of(chunk), chunk, field, kCodeLarge);
  }
  return field;
}

// A new field whose first `granules` are taken already. Where address space or metadata is short, little at a time: the
// program's own mappings need some too.
Field* open_field(unsigned granules) {
  const size_t least = round_up(size_t{granules} << kGranuleShift, kChunkBytes);
  for (size_t bytes = kFieldBytesMost;; bytes = bytes / 8 < least ? least : bytes / 8) {
    if (void* base = os::reserve(bytes, kChunkBytes)) {
      if (Field* field = make_field(static_cast<char*>(base), bytes)) {
        set(*field, 0, granules);
        publish(field);
        return field;
      }
      os::unreserve(base, bytes);
    }
    if (bytes == least) return nullptr;
  }
}

// Lowers the hint after a search that failed. Returns whether there is a longer run than it saw by now.
bool lower_longest(Field& f, unsigned longest) {
  f.longest.store(longest, order::seq_cst);  // [hint] seq_cst: before the second look; pairs with note_free_around
  Run run;
  if (!find_run(f, longest + 1, 1, &run, &longest)) return false;
  raise_longest(f, f.granules);  // nobody knows how many there are
  return true;
}

// Takes a run of this field; false if it seems to have none.
bool take_in(Field& f, unsigned count, unsigned step, unsigned* from) {
  constexpr unsigned kTries = 64;  // then another field: others take here all the time
  for (unsigned i = 0; i < kTries; ++i) {
    // Relaxed: a search; nothing is lowered for what it misses here.
    if (f.longest.load(order::relaxed) < count) return false;
    if (!find_resident_run(f, count, step, from)) {
      Run run;
      unsigned longest;
      if (!find_run(f, count, step, &run, &longest)) {
        if (lower_longest(f, longest)) continue;
        return false;
      }
      *from = run.from;
    }
    if (set(f, *from, count)) return true;
  }
  return false;
}

constinit Atomic<Field*> next_mended{nullptr};

// A thread that stops for ever between lowering `longest` and its second look, or between clearing bits and raising it,
// hides free runs. So each search that found nothing has one field, the next one each time, looked through whatever its
// hint says, before address space is used in its place.
Field* mend_next_field() {
  Field* f = next_mended.load(order::relaxed);  // relaxed: any field will do, and they stay
  if (f == nullptr) f = first_field();
  if (f == nullptr) return nullptr;
  next_mended.store(next_field(*f), order::relaxed);  // relaxed: as above
  raise_longest(*f, f->granules);
  return f;
}

Field* take_run(unsigned count, unsigned step, bool may_open, unsigned* from) {
  for (Field* f = first_field(); f != nullptr; f = next_field(*f)) {
    if (take_in(*f, count, step, from)) return f;
  }
  if (Field* f = mend_next_field(); f != nullptr && take_in(*f, count, step, from)) return f;
  *from = 0;
  return may_open ? open_field(count) : nullptr;
}

// Where the kernel gives no more: what is committed already.
Field* take_committed_run(unsigned count, unsigned step, unsigned* from) {
  for (Field* f = first_field(); f != nullptr; f = next_field(*f)) {
    Run run;
    unsigned longest;
    // [commit] acquire: as in commit. unseen: only where the kernel refuses
    const uint64_t words = f->committed.load(order::acquire);
    if (!find_run(*f, count, step, &run, &longest, words) || !set(*f, run.from, count)) continue;
    *from = run.from;
    return f;
  }
  return nullptr;
}

size_t line_offset(const char* address) {
  return ((reinterpret_cast<uintptr_t>(address) >> kGranuleShift) * 0x9e3779b97f4a7c15u >> 58) * 64;
}

}  // namespace

void* large_alloc(size_t size, size_t alignment, bool zeroed, bool may_open) {
  const bool hashed = alignment <= 64;
  const unsigned count = hashed ? large_granules(size) : granules_for(size == 0 ? 1 : size);
  const unsigned page_step = granules_a_page();
  const auto align_step = static_cast<unsigned>(alignment >> kGranuleShift);
  unsigned from;
  const unsigned step = align_step > page_step ? align_step : page_step;
  Field* f = take_run(count, step, may_open, &from);
  if (f != nullptr && !commit(*f, from, count)) {
    clear(*f, from, count);
    f = take_committed_run(count, step, &from);
  }
  if (f == nullptr) return nullptr;
  char* const start = granule_at(*f, from);
  const size_t offset = hashed ? line_offset(start) : 0;
  char* const object = start + offset;
  note_taken(*f, from, count, [&](unsigned first, unsigned n) {
    if (!zeroed) return;
    char* low = granule_at(*f, first);
    char* high = granule_at(*f, first + n);
    if (low < object) low = object;
    if (high > object + size) high = object + size;
    if (low < high) zero_pages(low, static_cast<size_t>(high - low));
  });
  f->entry(from).store(make_entry(count, offset), order::relaxed);  // relaxed: who frees it got it from the caller
  arch::store_barrier();  // also where the program passes it on by a relaxed store: CONCURRENCY.md, "Addresses"
  return object;
}

size_t large_good_size(size_t size) {
  return (size_t{granules_for(size + kLineOffsetMost)} << kGranuleShift) - kLineOffsetMost;
}

LargePlace large_place(const void* address) {
  LargePlace place{};
  auto* f = chunk_code(address) == kCodeLarge ? static_cast<Field*>(descriptor_at(address)) : nullptr;
  if (f == nullptr || !f->sealed()) return place;
  place.field = f;
  for (unsigned g = granule_of(*f, address) + 1; g-- != 0;) {
    const uint32_t entry = f->entry(g).load(order::relaxed);  // relaxed: the caller owns a live object
    if (!is_live(entry)) continue;
    place.granule = g;
    place.base = granule_at(*f, g) + offset_in(entry);
    place.usable = (size_t{granules_in(entry)} << kGranuleShift) - offset_in(entry);
    break;
  }
  return place;
}

unsigned large_park(void* object) {
  auto* f = static_cast<Field*>(descriptor_at(object));
  if (f == nullptr || !f->sealed()) return 0;
  const unsigned g = granule_of(*f, object);
  uint32_t entry = f->entry(g).load(order::relaxed);  // relaxed: the caller owns a live object
  if (!is_live(entry) || granule_at(*f, g) + offset_in(entry) != object) return 0;
  // Relaxed: decides which of two frees is the second.
  return f->entry(g).compare_exchange(entry, entry & ~kEntryLive, order::relaxed) ? granules_in(entry) : 0;
}

unsigned large_granules(size_t size) { return granules_for(size + kLineOffsetMost); }

void large_unpark(void* parked, size_t size, bool zeroed) {
  auto* f = static_cast<Field*>(descriptor_at(parked));
  Atomic<uint32_t>& entry = f->entry(granule_of(*f, parked));
  entry.store(entry.load(order::relaxed) | kEntryLive, order::relaxed);  // relaxed: who frees it got it from the caller
  arch::store_barrier();                                                 // as in large_alloc
  if (zeroed) zero_pages(static_cast<char*>(parked), size);
}

void large_give(void* parked) {
  auto* f = static_cast<Field*>(descriptor_at(parked));
  const unsigned g = granule_of(*f, parked);
  const uint32_t entry = f->entry(g).load(order::relaxed);  // relaxed: the caller owns it
  f->entry(g).store(0, order::relaxed);                     // relaxed: the occupancy orders it
  give(*f, g, granules_in(entry));
}

void large_give_parked() {
  for (Field* f = first_field(); f != nullptr; f = next_field(*f)) {
    for (unsigned g = 0; g < f->granules; ++g) {
      // Relaxed: the child has one thread. Where nothing is taken no entry was ever touched, most often.
      if (g % 64 == 0 && f->occupancy(g / 64).load(order::relaxed) == 0) {
        g += 63;
        continue;
      }
      const uint32_t entry = f->entry(g).load(order::relaxed);  // relaxed: as above
      if (entry != 0 && (entry & (kEntryLive | kEntryLent)) == 0) large_give(granule_at(*f, g));
    }
  }
}

bool large_free(void* object) {
  if (large_park(object) == 0) return false;
  large_give(object);
  return true;
}

bool large_resize(void* object, size_t size) {
  const LargePlace place = large_place(object);
  if (!place.starts(object)) return false;
  Field& f = *place.field;
  Atomic<uint32_t>& entry = f.entry(place.granule);
  uint32_t now = entry.load(order::relaxed);  // relaxed: the program orders its calls on one object
  if (!is_live(now)) return false;
  const size_t offset = offset_in(now);
  const unsigned had = granules_in(now), wanted = granules_for(size + offset), end = place.granule + had;
  if (wanted > had) {
    if (place.granule + wanted > f.granules || !set(f, end, wanted - had)) return false;
    if (!commit(f, end, wanted - had)) {
      clear(f, end, wanted - had);
      return false;
    }
    note_taken(f, end, wanted - had, [](unsigned, unsigned) {});
  }
  // Relaxed: as above. A free at the same time, which is misuse, decides: nobody gets granules twice.
  if (!entry.compare_exchange(now, make_entry(wanted, offset), order::relaxed)) {
    if (wanted > had) give(f, end, wanted - had);
    return false;
  }
  if (wanted < had) give(f, place.granule + wanted, had - wanted);
  return true;
}

char* large_lend_chunk() {
  constexpr unsigned kCount = kChunkBytes >> kGranuleShift;
  unsigned from;
  Field* f = take_run(kCount, kCount, false, &from);
  if (f == nullptr) return nullptr;
  char* const chunk = granule_at(*f, from);
  note_taken(*f, from, kCount, [](unsigned, unsigned) {});
  for (size_t at = 0; at < kChunkBytes; at += kPurgeRunBytes) {
    if (purge_pages(chunk + at, kPurgeRunBytes)) continue;
    give(*f, from, kCount);
    return nullptr;
  }
  visit_words(from, kCount, [&](unsigned w, uint64_t mask, unsigned) {
    f->resident(w).fetch_and(~mask, order::relaxed);  // relaxed: the granules are taken
    return true;
  });
  count_resident(-bytes_in(kCount));
  f->entry(from).store(kEntryLent | kCount, order::relaxed);  // relaxed: for statistics
  return chunk;
}

bool large_take_back_chunk(char* chunk) {
  if (chunk_code(chunk) != kCodeLarge) return false;
  auto* f = static_cast<Field*>(descriptor_at(chunk));
  const unsigned g = granule_of(*f, chunk);
  const unsigned granules = granules_in(f->entry(g).load(order::relaxed));  // relaxed: the caller owns it
  f->entry(g).store(0, order::relaxed);                                     // relaxed: the occupancy orders it
  clear(*f, g, granules);
  return true;
}

// ---- Purging ----

namespace {

size_t purge_word(Field& f, unsigned w, uint64_t candidates) {
  // [large] acquire: the pages are no longer used; pairs with clear.
  const uint64_t mine = candidates & ~f.occupancy(w).fetch_or(candidates, order::acquire);
  // Relaxed: the granules are taken. Not those that another purge has had since the caller looked.
  const uint64_t dirty = mine & f.resident(w).load(order::relaxed);
  uint64_t gone = 0;
  visit_runs(dirty, kPurgeRunBytes >> kGranuleShift, [&](unsigned at, unsigned length, uint64_t mask) {
    if (purge_pages(granule_at(f, w * 64 + at), size_t{length} << kGranuleShift)) gone |= mask;
  });
  if (gone != 0) {
    f.resident(w).fetch_and(~gone, order::relaxed);  // relaxed: the granules are taken
    count_resident(-bytes_in(popcount(gone)));
    count_dirty(-bytes_in(popcount(gone)), true);
  }
  f.aged(w).fetch_and(~mine, order::relaxed);       // relaxed: a mark only
  f.occupancy(w).fetch_and(~mine, order::seq_cst);  // [large] release: pairs with set. [hint] seq_cst: as in clear
  // The runs that were claimed are free again: somebody may have looked meanwhile.
  visit_runs(mine, 64, [&](unsigned at, unsigned length, uint64_t) { note_free_around(f, w * 64 + at, length); });
  return size_t{popcount(gone)} << kGranuleShift;
}

template <class Visit>
void visit_dirty(Visit&& visit) {
  for (Field* f = first_field(); f != nullptr; f = next_field(*f)) {
    for (unsigned w = 0; w < f->words(); ++w) {
      // Relaxed: guesses, the claim decides.
      const uint64_t free = f->resident(w).load(order::relaxed) & ~f->occupancy(w).load(order::relaxed);
      if (free != 0 && !visit(*f, w, free)) return;
    }
  }
}

}  // namespace

size_t large_purge(bool all, size_t most_bytes) {
  size_t purged = 0;
  constexpr unsigned kRefusedMost = 64;  // in a row, by the kernel: then all may be locked
  unsigned refused = 0;
  visit_dirty([&](Field& f, unsigned w, uint64_t free) {
    if (purged >= most_bytes || refused == kRefusedMost) return false;
    if (!all) free &= f.aged(w).load(order::relaxed);  // relaxed: marks only delay or hasten a purge
    // Not more than what is left of `most_bytes`, but at least one call's worth.
    const size_t left = most_bytes - purged < kPurgeRunBytes ? kPurgeRunBytes : most_bytes - purged;
    const auto most = static_cast<unsigned>(left >> kGranuleShift < 64 ? left >> kGranuleShift : 64);
    free = lowest_bits(free, most - most % granules_a_page());
    const size_t gone = free == 0 ? 0 : purge_word(f, w, free);
    if (free != 0) refused = gone == 0 ? refused + 1 : 0;
    purged += gone;
    return true;
  });
  return purged;
}

void large_age() {
  visit_dirty([](Field& f, unsigned w, uint64_t free) {
    f.aged(w).fetch_or(free, order::relaxed);  // relaxed: a mark
    return true;
  });
}

}  // namespace folio
