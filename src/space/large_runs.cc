// Searches one field's words for runs, sets and clears them, and keeps the field's hints and ages.
#include "space/large_runs.h"

#include "space/fields.h"

namespace folio {

unsigned count_resident_in(Field& f, unsigned from, unsigned count) {
  unsigned n = 0;
  visit_words(from, count, [&](unsigned w, uint64_t mask, unsigned) {
    n += popcount(f.resident(w).load(order::relaxed) & mask);  // relaxed: a guess
    return true;
  });
  return n;
}

namespace {

// The first granule from `at` on whose bit is set, or `end`.
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

// Where the row of set bits begins that ends before `at`, but not below `least`.
template <class Load>
unsigned row_start(Load&& load, unsigned at, unsigned least) {
  while (at > least) {
    const unsigned bits = (at - 1) % 64 + 1;
    const uint64_t others = ~load((at - 1) / 64) & low_mask(bits);
    if (others != 0) {
      const unsigned start = (at - 1) / 64 * 64 + highest_bit(others) + 1;
      return start > least ? start : least;
    }
    at -= bits;
  }
  return least;
}

// How long the longest row of set bits is.
template <class Load>
unsigned longest_row(Load&& load, unsigned words) {
  unsigned best = 0, before = 0;  // before: of the row that ends where the word begins
  for (unsigned w = 0; w < words; ++w) {
    const uint64_t word = load(w);
    if (word == ~uint64_t{0}) {
      before += 64;
      continue;
    }
    before += lowest_bit(~word);
    if (before > best) best = before;
    while (best < 64 && starts_of_runs(word, 0, best + 1) != 0) ++best;
    before = 63 - highest_bit(~word);
  }
  return before > best ? before : best;
}

// The first multiple of `step` (a power of two) from `at` on, or `end`, where a row of set bits of at least `count`
// begins, or goes on. A word at a time: of objects of 64 KiB aligned to their size each leaves a row that is too short,
// and row by row a search took 80,000 instructions.
template <class Load>
unsigned next_row(Load&& load, unsigned at, unsigned count, unsigned step, unsigned end) {
  const uint64_t places = step < 64 ? ~uint64_t{0} / low_mask(step) : 1;
  const unsigned words = end / 64, within = count < 64 ? count : 64;
  unsigned w = at / 64;
  if (w >= words) return end;
  for (uint64_t word = load(w) & ~low_mask(at % 64);;) {
    const uint64_t above = w + 1 < words ? load(w + 1) : 0;
    const bool here = word != 0 && (step <= 64 || w % (step / 64) == 0);
    if (const uint64_t starts = here ? starts_of_runs(word, above, within) & places : 0; starts != 0) {
      at = w * 64 + lowest_bit(starts);
      if (count <= 64) return at;
      const unsigned stop = next_bit([&](unsigned i) { return ~load(i); }, at, end);
      if (stop - at >= count) return at;
      at = stop;
      w = at / 64;
      if (w >= words) return end;
      word = load(w) & ~low_mask(at % 64);
      continue;
    }
    if (++w == words) return end;
    word = above;
  }
}

struct Run {
  unsigned from, missing, length;  // missing: granules to touch anew; length: of the free run
  bool better(const Run& than) const {
    if (missing != than.missing) return missing < than.missing;
    return length != than.length ? length < than.length : from < than.from;
  }
};

// The words that may have granules whose pages are there.
uint64_t marked_words(Field& f) { return f.dirty.load(order::seq_cst); }  // [room] seq_cst: pairs with mark_dirty

// Granules that are free and there, of a word and of the one above it.
struct ReadyWords {
  uint64_t low, high;
  ReadyWords(Field& f, unsigned w) : low(ready_in(f, w)), high(w + 1 < f.words() ? ready_in(f, w + 1) : 0) {}
  uint64_t starts(unsigned count) const { return starts_of_runs(low, high, count); }
  // Of runs that begin in the lower word, below 64.
  unsigned longest() const {
    unsigned length = 0;
    for (unsigned more = 32; more != 0; more /= 2) {
      if (starts(length + more) != 0) length += more;
    }
    return length;
  }
};

// The word has no run of the length that its hint promised.
void lower_row(Field& f, unsigned w, ReadyWords words) {
  f.ready_rows.lower(w, words.longest());
  // [room]'s second look: who made a run meanwhile may have seen the hint as high as it was.
  const ReadyWords now(f, w);
  if (now.low == words.low && now.high == words.high) return;
  f.ready_rows.raise(w, now.starts(64) != 0 ? 64 : now.longest());
  raise_room(f, Room::kReady, kRunMost);  // learn_room may have seen the hint as it was lowered
}

}  // namespace

// In a free run, the place with the fewest granules to touch is at its start, where resident granules begin, or where
// they end.
bool find_run(Field& f, unsigned count, unsigned step, unsigned* from, uint64_t words) {
  constexpr unsigned kRunsMost = 32;  // that are looked at: then the best of these
  const auto free = [&](unsigned w) { return (words >> w & 1) == 0 ? 0 : free_in(f, w); };
  const auto taken = [&](unsigned w) { return ~free(w); };
  const auto resident = [&](unsigned w) { return f.resident(w).load(order::relaxed); };  // relaxed: a guess
  const auto missing = [&](unsigned w) { return ~resident(w); };
  Run best{};
  unsigned found = 0;
  for (unsigned at = 0; found < kRunsMost;) {
    const unsigned fit = next_row(free, at, count, step, f.granules);
    if (fit >= f.granules) break;
    at = step == 1 ? fit : row_start(free, fit, at);
    const unsigned end = next_bit(taken, fit, f.granules), length = end - at;
    bool fits = false;
    const auto consider = [&](size_t first) {
      if (first < at || first + count > end) return;
      const auto place = static_cast<unsigned>(first);
      const Run run = {place, count - count_resident_in(f, place, count), length};
      if ((found == 0 && !fits) || run.better(best)) best = run;
      fits = true;
    };
    // Nothing more in this free run is better.
    const auto settled = [&] { return (found != 0 || fits) && best.missing == 0 && length >= best.length; };
    if (!settled()) {
      consider(round_up(at, step));
      for (unsigned low = at; !settled() && (low = next_bit(resident, low, end)) < end;) {
        const unsigned high = next_bit(missing, low, end);
        consider(round_up(low, step));
        if (high - at >= count) consider(round_down(high - count, step));
        low = high;
      }
    }
    if (fits) ++found;
    if (found != 0 && best.missing == 0 && best.length == count) break;
    at = end;
  }
  *from = best.from;
  return found != 0;
}

// The lowest run, not the tightest: a search for the tightest took three times as long (100 objects of 33 to 100 KB by
// turns: 291 ns a pair in place of 108), and saved 2 % of memory.
bool find_ready_run(Field& f, unsigned count, unsigned step, unsigned* from) {
  const auto ready = [&](unsigned w) { return ready_in(f, w); };
  if (step != 1) {
    const uint64_t marked = marked_words(f);
    *from = next_row([&](unsigned w) { return (marked >> w & 1) != 0 ? ready(w) : 0; }, 0, count, step, f.granules);
    return *from < f.granules;
  }
  const unsigned within = count < 64 ? count : 64;
  for (unsigned w = 0; (w = f.ready_rows.next(w, within)) < f.words(); ++w) {
    const ReadyWords words(f, w);
    uint64_t starts = words.starts(within);
    if (starts == 0) lower_row(f, w, words);
    while (starts != 0) {
      *from = w * 64 + lowest_bit(starts);
      if (count <= 64) return true;
      const unsigned stop = next_bit([&](unsigned i) { return ~ready(i); }, *from, f.granules);
      if (stop - *from >= count) return true;
      // Not the same one again if others have taken it meanwhile.
      const unsigned next = stop > *from ? stop : stop + 1;
      starts &= next < (w + 1) * 64 ? ~low_mask(next % 64) : 0;
    }
  }
  return false;
}

namespace {

// After these granules became free: how long the rows are that they are in now, with their neighbours.
void note_free_around(Field& f, unsigned from, unsigned count) {
  const auto free = [&](unsigned w) { return free_in(f, w); };
  const auto taken = [&](unsigned w) { return ~free(w); };
  const unsigned end = from + count;
  if (room_of(f, Room::kFree) < f.granules) {
    raise_room(f, Room::kFree, next_bit(taken, end, f.granules) - row_start(free, from, 0));
  } else {
    raise_room(f, Room::kFree, f.granules);  // those above it
  }
  const auto ready = [&](unsigned w) { return ready_in(f, w); };
  const auto other = [&](unsigned w) { return ~ready(w); };
  const unsigned last = f.granules - end > kRunMost ? end + kRunMost : f.granules;
  for (unsigned at = from; (at = next_bit(ready, at, end)) < end;) {
    const unsigned start = row_start(ready, at, at > kRunMost ? at - kRunMost : 0), stop = next_bit(other, at, last);
    // The words in which a run begins that now goes on here. Those before have had 64 granules and more.
    const unsigned first = start + 64 > from ? start : from - 63, below = stop < end ? stop : end;
    for (unsigned w = first / 64; w * 64 < below; ++w) f.ready_rows.raise(w, stop - (w * 64 > start ? w * 64 : start));
    raise_room(f, Room::kReady, stop - start < kRunMost ? stop - start : kRunMost);
    at = stop;
  }
}

// Before granules of the word are given: marks as aged what is dirty in it already, if that dates from before the last
// large_age().
void note_age(Field& f, unsigned w) {
  // Marks, which only hasten or delay a purge.
  const uint32_t now = f.home->age.get();
  if (f.freed_at[w].get() == now) return;
  const uint64_t dirty = ready_in(f, w);
  if (dirty != 0) f.aged(w).fetch_or(dirty, order::relaxed);  // relaxed: a mark
  f.freed_at[w].set(now);
}

void mark_dirty(Field& f, unsigned w) {
  const uint64_t bit = uint64_t{1} << w;
  // [room] seq_cst: after the granules were cleared; pairs with settle_word.
  if ((f.dirty.load(order::seq_cst) & bit) == 0) f.dirty.fetch_or(bit, order::seq_cst);
  raise_mark(f, Mark::kDirty);
}

void clear_bits_of(Field& f, unsigned w, uint64_t granules) {
  const bool dirty = (f.resident(w).load(order::relaxed) & granules) != 0;  // relaxed: the granules are taken
  if (dirty) note_age(f, w);
  // [large] release: the last use of the granules; pairs with set. [room] seq_cst: before the hints are looked at.
  f.occupancy(w).fetch_and(~granules, order::seq_cst);
  if (dirty) mark_dirty(f, w);
}

}  // namespace

uint64_t aged_in(Field& f, unsigned w, uint64_t dirty) {
  const bool all = f.freed_at[w].get() != f.home->age.get();
  return all ? dirty : dirty & f.aged(w).load(order::relaxed);  // relaxed: a mark
}

void clear(Field& f, unsigned from, unsigned count) {
  visit_words(from, count, [&](unsigned w, uint64_t mask, unsigned) {
    clear_bits_of(f, w, mask);
    return true;
  });
  note_free_around(f, from, count);
}

void clear_word(Field& f, unsigned w, uint64_t granules) {
  clear_bits_of(f, w, granules);
  visit_runs(granules, 64, [&](unsigned at, unsigned length, uint64_t) { note_free_around(f, w * 64 + at, length); });
}

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

namespace {

unsigned longest_free(Field& f) {
  return longest_row([&](unsigned w) { return free_in(f, w); }, f.words());
}

// Settles the marked words that have no resident free granule.
unsigned longest_ready(Field& f) {
  const uint64_t marked = marked_words(f);
  const unsigned row = longest_row(
      [&](unsigned w) {
        if ((marked >> w & 1) == 0) return uint64_t{0};
        const uint64_t ready = ready_in(f, w);
        if (ready == 0) settle_word(f, w);
        return ready;
      },
      f.words());
  return row < kRunMost ? row : kRunMost;
}

}  // namespace

bool learn_room(Field& f, Room r, unsigned count) {
  if (r == Room::kReady) {
    // Lowered before the only look: a search for resident pages meanwhile misses this field, and takes others.
    lower_room(f, r, 0);
    const unsigned most = f.ready_rows.most();
    const unsigned ready = most < count && most < RowHints::kMost ? most : longest_ready(f);
    raise_room(f, r, ready);
    return ready >= count;
  }
  // Not so here: while this hint is too low, another thread may open a new field for want of this one. So it is lowered
  // only to what was found, and looked at again.
  const unsigned first = longest_free(f);
  if (first >= count) return true;
  lower_room(f, r, first);
  const unsigned second = longest_free(f);
  if (second > first) raise_room(f, r, second);
  return second >= count;
}

void raise_all(Field& f) {
  for (unsigned w = 0; w < f.words(); ++w) f.ready_rows.raise(w, RowHints::kMost);
  raise_room(f, Room::kReady, kRunMost);
  raise_room(f, Room::kFree, f.granules);
  // Relaxed: nothing was changed that must be seen; what somebody lowers just then is repaired once more.
  f.dirty.fetch_or(low_mask(f.words()), order::relaxed);
  raise_mark(f, Mark::kDirty);
}

void settle_word(Field& f, unsigned w) {
  f.dirty.fetch_and(~(uint64_t{1} << w),
                    order::seq_cst);  // [room] seq_cst: before the second look; pairs with mark_dirty
  if (ready_in(f, w) == 0) return;
  mark_dirty(f, w);
  raise_room(f, Room::kReady, kRunMost);  // a search meanwhile may have left this word out, and lowered the room
}

void settle_field(Field& f) {
  lower_mark(f, Mark::kDirty);
  // [room] seq_cst: the second look; pairs with mark_dirty.
  if (f.dirty.load(order::seq_cst) != 0) raise_mark(f, Mark::kDirty);
}

}  // namespace folio
