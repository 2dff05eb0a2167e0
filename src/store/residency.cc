// Keeps the resident and dirty bits of pages as objects come and go; touches pages ahead; makes clusters huge again.
#include "store/residency.h"

#include "config/options.h"
#include "os/os.h"
#include "space/huge_pace.h"
#include "space/pages.h"
#include "space/room.h"
#include "store/cluster.h"
#include "store/commit.h"
#include "store/hints.h"
#include "store/occupancy.h"

namespace folio {

namespace {

uint64_t bit_of(unsigned page) { return uint64_t{1} << page % 64; }

// relaxed: a guess; exact for a thread with an object on the page, as only a purge that has all of them clears the bit
uint64_t resident_in(Descriptor& d, unsigned word) { return d.resident(word).load(order::relaxed); }

// [page] seq_cst: after the caller gave objects back, or after set_resident of pages on which it has none; pairs with
// the same look of another thread, and with set_marks through the dirty bits.
uint64_t seen_resident(Descriptor& d, unsigned word) { return d.resident(word).load(order::seq_cst); }

// Calls visit(pages) for the pages that objects of a folio touch, each page once, in ascending order.
template <class Visit>
void visit_pages_of(const ChunkPages& chunk, unsigned folio, uint64_t objects, Visit&& visit) {
  const unsigned before = folio * kFolioObjects;
  unsigned done = 0;
  visit_runs(objects, kFolioObjects, [&](unsigned at, unsigned length, uint64_t) {
    Pages pages = chunk.of({before + at, before + at + length});
    if (pages.first < done) pages.first = done;
    if (pages.first >= pages.end) return;
    done = pages.end;
    visit(pages);
  });
}

void set_resident(Descriptor& d, Pages pages, PageChange& change) {
  visit_words_of(pages, [&](unsigned w, uint64_t mask) {
    if ((mask & ~resident_in(d, w)) == 0) return;
    // Relaxed: the caller has objects there; or it calls mark_dirty next, which rereads this word, seq_cst, at first.
    change.resident += static_cast<int>(popcount(mask & ~d.resident(w).fetch_or(mask, order::relaxed)));
  });
}

}  // namespace

bool nothing_there(Descriptor& d) {
  uint64_t any = 0;
  for (unsigned w = 0; w < kPageWords; ++w) any |= resident_in(d, w);
  return any == 0;
}

void PageChange::count() const {
  const auto page = static_cast<int64_t>(os::page_bytes());
  if (resident != 0) count_resident(resident * page);
  if (dirty != 0) count_dirty(dirty * page);
}

namespace {

FOLIO_INLINE bool is_free(Descriptor& d, const ChunkPages& chunk, unsigned page) {
  uint64_t taken = 0;
  visit_words_of(chunk.on({page, page + 1}), [&](unsigned folio, uint64_t mask) {
    // [page] seq_cst: a look; pairs with set_bits
    taken |= d.occupancy(chunk.info(), folio).load(order::seq_cst) & mask;
  });
  return taken == 0;
}

}  // namespace

bool is_free(Descriptor& d, unsigned page) { return is_free(d, ChunkPages(d), page); }

namespace {

// Sets the dirty marks of pages that looked free. Returns the pages that this call has marked and that are still
// resident: a purge, which clears the resident bits before the marks, may have come between, and then the mark is
// cleared again. After that comes another look: the page may have become resident again, as part of a huge page, and
// the thread that made it so left the mark to this one, which was still set.
uint64_t set_marks(Descriptor& d, unsigned w, uint64_t pages, PageChange& change) {
  uint64_t marked = 0;
  for (uint64_t gone = pages; gone != 0;) {
    // [page] seq_cst: a mark that was cleared beside this look is seen cleared; pairs with unmark_dirty.
    const uint64_t mine = gone & seen_resident(d, w) & ~d.dirty(w).load(order::seq_cst);
    if (mine == 0) break;
    // [page] seq_cst: before the second look; pairs with note_taken, Batch::note. [hint]: before raise_chunk reads.
    const uint64_t set = mine & ~d.dirty(w).fetch_or(mine, order::seq_cst);
    gone = set & ~resident_in(d, w);
    marked |= set & ~gone;
    change.dirty += static_cast<int>(popcount(set));
    // [page] seq_cst: before the next look at resident bits; pairs with seen_resident, after set_resident. unseen: that
    // takes a purge, and a huge page that comes after it, between two instructions of a give
    if (gone != 0) change.dirty -= static_cast<int>(popcount(d.dirty(w).fetch_and(~gone, order::seq_cst) & gone));
  }
  return marked;
}

}  // namespace

void mark_dirty(Descriptor& d, Pages pages, PageChange& change) {
  const ChunkPages chunk(d);
  bool any = false;
  visit_words_of(pages, [&](unsigned w, uint64_t mask) {
    uint64_t free = 0;
    for (uint64_t rest = mask & seen_resident(d, w); rest != 0; rest &= rest - 1) {
      if (is_free(d, chunk, w * 64 + lowest_bit(rest))) free |= rest & -rest;
    }
    const uint64_t marked = set_marks(d, w, free, change);
    any = any || marked != 0;
    for (uint64_t rest = marked; rest != 0; rest &= rest - 1) {
      const unsigned page = w * 64 + lowest_bit(rest);
      if (!is_free(d, chunk, page)) unmark_dirty(d, page, change);
    }
  });
  if (any) raise_chunk(d, kDirty);
}

void unmark_dirty(Descriptor& d, unsigned page, PageChange& change) {
  Word& dirty = d.dirty(page / 64);
  const uint64_t bit = bit_of(page);
  do {
    // [page] seq_cst: before another look; pairs with set_marks and the look that comes before it.
    if ((dirty.fetch_and(~bit, order::seq_cst) & bit) != 0) --change.dirty;
    if (!is_free(d, page) || set_marks(d, page / 64, bit, change) == 0) return;
  } while (!is_free(d, page));
}

bool any_dirty(Descriptor& d) {
  uint64_t any = 0;
  // [hint] seq_cst: the second look after the dirty hint was lowered; pairs with mark_dirty. unseen: the first look has
  // to miss the mark too, which takes two stale reads
  for (unsigned w = 0; w < kPageWords; ++w) any |= d.dirty(w).load(order::seq_cst);
  return any != 0;
}

namespace {

// Touching ahead: one system call brings `page` and those behind it: a sixteenth of what the bin has below it and in up
// to 16 other chunks, 64 KiB at most. A page costs about twice as much by a fault of its own as together with fifteen
// others (measured); a heap of 200 MiB without huge pages grows in 5 to 12 % less time. Only for objects so small that
// every use of one touches its page; and not with decay:0, where the next slow call purges what came (then each page of
// a growing heap faulted four to eight times). Rejected: to ask the kernel by mincore whether the pages below are
// resident: sandboxes kill a process for it, and it cost 5 % of that time.
constexpr unsigned kAheadShift = 4;
constexpr size_t kAheadMost = size_t{64} << 10;
constexpr unsigned kAheadOthers = 16;  // so many chunks of the bin are enough for that
constexpr size_t kAheadObjectMost = 1024;

void touch_ahead(Descriptor& d, unsigned page, PageChange& change) {
  const ChunkPages chunk(d);
  const unsigned shift = chunk.shift(), last = chunk.in_use().end;
  const unsigned others = d.block->home->chunks.get() - 1;
  const unsigned below = page - chunk.in_use().first + (others < kAheadOthers ? others : kAheadOthers) * chunk.count();
  const auto most = static_cast<unsigned>(kAheadMost >> shift);
  unsigned end = page + (below >> kAheadShift < most ? below >> kAheadShift : most);
  if (end > last) end = last;
  // Up to the next resident page. If others take or purge some meanwhile, their bits stay right or become dirty again.
  unsigned next = page + 1;
  while (next < end && (resident_in(d, next / 64) & bit_of(next)) == 0) ++next;
  if (next <= page + 1 || commit_to(d, size_t{next} << shift) != Commit::kDone) return;
  if (!os::populate(d.chunk() + (size_t{page} << shift), size_t{next - page} << shift)) return;
  set_resident(d, {page + 1, next}, change);
  mark_dirty(d, {page + 1, next}, change);
}

}  // namespace

namespace {

// Which of a word's pages are absent, dirty or aged: a take has something to change there.
FOLIO_INLINE uint64_t to_change(Descriptor& d, unsigned w) {
  // [page] seq_cst: after the objects' bits were set; pairs with mark_dirty.
  const uint64_t dirty = d.dirty(w).load(order::seq_cst);
  return dirty | d.aged(w).load(order::relaxed) | ~resident_in(d, w);  // relaxed: a mark
}

// Whether all these pages, one at least, are in use.
FOLIO_INLINE bool all_in_use(Descriptor& d, Pages pages) {
  const unsigned first = pages.first / 64, last = (pages.end - 1) / 64;
  const uint64_t from = ~low_mask(pages.first % 64), to = ~uint64_t{0} >> (63 - (pages.end - 1) % 64);
  if (first == last) return (to_change(d, first) & from & to) == 0;
  uint64_t change = (to_change(d, first) & from) | (to_change(d, last) & to);
  for (unsigned w = first + 1; w < last; ++w) change |= to_change(d, w);
  return change == 0;
}

// Apart, as most takes change nothing.
FOLIO_NOINLINE void note_change(Descriptor& d, unsigned folio, uint64_t mine) {
  const ChunkPages chunk(d);
  PageChange change;
  unsigned fresh = 0;  // 1 + the last page that was absent; 0: all were resident
  visit_pages_of(chunk, folio, mine, [&](Pages pages) {
    visit_words_of(pages, [&](unsigned w, uint64_t mask) {
      const uint64_t missing = mask & ~resident_in(d, w);
      if (missing != 0) fresh = w * 64 + highest_bit(missing) + 1;
      // [page] seq_cst: after the objects' bits were set; pairs with mark_dirty.
      if ((d.dirty(w).load(order::seq_cst) & mask) != 0) {
        // Relaxed: the caller has objects on these pages.
        change.dirty -= static_cast<int>(popcount(d.dirty(w).fetch_and(~mask, order::relaxed) & mask));
      }
      if ((d.aged(w).load(order::relaxed) & mask) != 0) d.aged(w).fetch_and(~mask, order::relaxed);  // relaxed: a mark
    });
  });
  if (fresh == 0) return;
  if (d.backing() == Backing::kHugePurged) touch_purged(d);
  const int before = change.resident;
  visit_pages_of(chunk, folio, mine, [&](Pages pages) { set_resident(d, pages, change); });
  if (change.resident != before && d.info().size <= kAheadObjectMost && options.decay != 0 && !room_is_tight()) {
    touch_ahead(d, fresh - 1, change);
  }
}

}  // namespace

void note_taken(Descriptor& d, unsigned folio, uint64_t mine) {
  const unsigned before = folio * kFolioObjects;
  const Pages pages = ChunkPages(d).of({before + lowest_bit(mine), before + highest_bit(mine) + 1});
  if (!all_in_use(d, pages)) note_change(d, folio, mine);
}

namespace {

// Marks pages after objects `given` of `run`, a run of free objects, were given back. Pages inside the run are free as
// long as it is: one second look at the folio's word serves them all. Pages at its ends are looked at one by one.
void mark_given(Descriptor& d, const ChunkPages& chunk, unsigned folio, uint64_t run, uint64_t given,
                PageChange& change) {
  const unsigned before = folio * kFolioObjects;
  const Pages pages = chunk.of({before + lowest_bit(given), before + highest_bit(given) + 1}),
              inside = chunk.inside({before + lowest_bit(run), before + highest_bit(run) + 1});
  Pages free = pages;
  const bool shares_low = pages.first < inside.first;
  const bool shares_high = inside.end < pages.end;
  if (shares_low && !is_free(d, chunk, pages.first)) ++free.first;
  if (shares_high && free.first < free.end && !is_free(d, chunk, pages.end - 1)) --free.end;
  bool any = false;
  visit_words_of(free, [&](unsigned w, uint64_t mask) { any |= set_marks(d, w, mask, change) != 0; });
  if (!any) return;
  const uint64_t again =
      d.occupancy(chunk.info(), folio).load(order::seq_cst) & run;  // [page] seq_cst: the second look
  for (unsigned page = free.first; page < free.end; ++page) {
    const bool edge = page < inside.first || page >= inside.end;
    if ((edge || again != 0) && !is_free(d, chunk, page)) unmark_dirty(d, page, change);
  }
  raise_chunk(d, kDirty);
}

}  // namespace

// Few frees in random order free a page, so runs too short for a page are dropped first. The others are marked by runs.
void note_given(Descriptor& d, unsigned folio, uint64_t given, uint64_t left, PageChange& change) {
  const uint64_t free = in_long_runs(~left, objects_a_page(d.info())) & d.valid(folio);
  if ((given & free) == 0) return;
  const ChunkPages chunk(d);
  visit_runs(free, kFolioObjects, [&](unsigned, unsigned, uint64_t run) {
    if ((run & given) != 0) mark_given(d, chunk, folio, run, run & given, change);
  });
}

uint64_t resident_objects(Descriptor& d, unsigned folio, uint64_t some) {
  if (some == 0) return 0;
  const unsigned before = folio * kFolioObjects;
  const ChunkPages chunk(d);
  uint64_t found = some;
  visit_words_of(chunk.of({before + lowest_bit(some), before + highest_bit(some) + 1}), [&](unsigned w, uint64_t mask) {
    visit_runs(mask & ~resident_in(d, w), 64, [&](unsigned at, unsigned length, uint64_t) {
      const Objects on = chunk.on({w * 64 + at, w * 64 + at + length});
      const unsigned first = on.first < before ? 0 : on.first - before, end = on.end < before ? 0 : on.end - before;
      found &= ~low_mask(end) | low_mask(first);
    });
  });
  return found;
}

void touch_purged(Descriptor& d) {
  d.set_backing(Backing::kSmallPurged);
  if (!touch_purged_cluster(d.chunk(), !room_is_tight() && huge_pages_due())) return;
  d.set_backing(Backing::kHuge);
  note_whole(d);
  // With the commit word busy, so that the chunk does not leave its bin meanwhile: its marks would count for nobody.
  // Chunks that others touch at this time have small pages, and count as a part of the huge one: no harm.
  visit_cluster(d.chunk(), [](Descriptor& other) {
    if (other.backing() != Backing::kHugePurged || !close_commit(other)) return true;
    other.set_backing(Backing::kHuge);
    note_whole(other);
    open_commit(other);
    return true;
  });
}

void note_whole(Descriptor& d) {
  const ChunkPages chunk(d);
  PageChange change;
  set_resident(d, {0, chunk.count()}, change);
  mark_dirty(d, chunk.in_use(), change);
}

void prepare_purge(Descriptor& d) {
  break_cluster(d.chunk());
  d.set_backing(Backing::kSmallPurged);
}

}  // namespace folio
