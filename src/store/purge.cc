// Chooses, claims, purges and gives back runs of pages of a chunk; walks over the chunks that may have some.
#include "store/purge.h"

#include "os/os.h"
#include "space/chunks.h"
#include "space/pages.h"
#include "store/cluster.h"
#include "store/commit.h"
#include "store/dirty_walk.h"
#include "store/occupancy.h"
#include "store/residency.h"
#include "sync/relaxed.h"

namespace folio {

namespace {

// A tick breaks a huge page up only to purge 1/2^3 of it or more: with it goes what it saves in TLB misses.
constexpr unsigned kBreakShift = 3;

bool is_huge_page(const Descriptor& d) { return d.backing() == Backing::kHuge && is_cluster(d.first, kClusterHuge); }

// Whether less than 1/2^shift of the huge page is free. What no bin has of it is about to be used.
bool is_well_used(Descriptor& d, unsigned shift) {
  if (shift == kWorthAlways) return false;
  unsigned free = 0;
  visit_cluster(d.chunk(), [&](Descriptor& other) {
    for (unsigned w = 0; w < kPageWords; ++w)
      free += popcount(other.dirty(w).load(order::relaxed));  // relaxed: a guess
    return true;
  });
  return free < kClusterChunks * ChunkPages(d).count() >> shift;
}

// The pages that a purge will try to take, about `most_bytes` at most; nothing is claimed yet.
struct Choice {
  uint64_t words[kPageWords] = {};
  unsigned count = 0;
};
Choice choose(Descriptor& d, PurgeWhich which, size_t most_bytes) {
  Choice choice;
  const ChunkPages chunk(d);
  visit_words_of(chunk.in_use(), [&](unsigned w, uint64_t mask) {
    if (size_t{choice.count} << chunk.shift() >= most_bytes) return;
    uint64_t pages = d.dirty(w).load(order::relaxed) & mask;  // relaxed: any_dirty sees what this misses
    if (which == PurgeWhich::kAged) pages &= d.aged(w).load(order::relaxed);  // relaxed: marks only delay or hasten
    if (which == PurgeWhich::kAll) {
      // Free pages without a mark: a thread may have stopped before it set it.
      uint64_t others = d.resident(w).load(order::relaxed) & mask & ~pages;  // relaxed: a guess, the claim decides
      for (; others != 0; others &= others - 1) {
        if (is_free(d, w * 64 + lowest_bit(others))) pages |= others & -others;
      }
    }
    choice.words[w] = pages;
    choice.count += popcount(pages);
  });
  return choice;
}

// The first run of chosen pages at or behind `from`, cut to `most` pages; an empty range behind the last run.
Pages next_run(const Choice& choice, unsigned from, unsigned most) {
  unsigned w = from / 64;
  uint64_t rest = w < kPageWords ? choice.words[w] & ~low_mask(from % 64) : 0;
  while (rest == 0 && ++w < kPageWords) rest = choice.words[w];
  if (rest == 0) return {kPageWords * 64, kPageWords * 64};
  const unsigned first = w * 64 + lowest_bit(rest);
  unsigned end = first;
  for (uint64_t after = 0; after == 0 && end / 64 < kPageWords && end < first + most;) {
    after = ~choice.words[end / 64] >> end % 64;
    end += after == 0 ? 64 - end % 64 : lowest_bit(after);
  }
  return {first, end < first + most ? end : first + most};
}

// Adds resident pages before the first object and behind the last one: a huge page brought them. No claim of an object
// holds the chunk in its bin for these, and in another one objects may lie there. So its commit word does, which
// the caller opens again. Returns whether there are any.
bool add_outside(Descriptor& d, Choice* choice) {
  const ChunkPages chunk(d);
  const auto visit = [&](auto&& each) {
    visit_words_of(Pages{0, chunk.in_use().first}, each);
    visit_words_of(Pages{chunk.in_use().end, chunk.count()}, each);
  };
  uint64_t any = 0;
  // Relaxed: a glance.
  visit([&](unsigned w, uint64_t mask) { any |= mask & d.resident(w).load(order::relaxed); });
  if (any == 0 || !close_commit(d)) return false;
  // Relaxed: no object is there, and the chunk stays.
  visit([&](unsigned w, uint64_t mask) { choice->words[w] |= mask & d.resident(w).load(order::relaxed); });
  return true;
}

}  // namespace

void release_objects(Descriptor& d, Objects objects, PageChange& change) {
  visit_words_of(objects, [&](unsigned folio, uint64_t mask) { clear_bits(d, folio, mask); });
  mark_dirty(d, ChunkPages(d).of(objects), change);
}

bool claim_objects(Descriptor& d, Objects objects, PageChange& change) {
  bool mine = true;
  visit_words(objects.first, objects.end - objects.first, [&](unsigned folio, uint64_t mask, unsigned first) {
    const uint64_t before = set_bits(d, folio, mask);
    mine = (before & mask) == 0;
    if (mine) return true;
    clear_bits(d, folio, mask & ~before);
    mark_dirty(d, ChunkPages(d).of({first, first + popcount(mask)}), change);
    release_objects(d, {objects.first, first}, change);
    return false;
  });
  return mine;
}

bool is_chunk_free(Descriptor& d) {
  for (unsigned folio = 0; folio < d.info().folios; ++folio) {
    if (d.occupancy(folio).load(order::relaxed) != 0) return false;  // relaxed: a guess, the claim decides
  }
  return true;
}

bool claim_chunk(Descriptor& d, PageChange& change) {
  if (!close_commit(d)) return false;
  if (claim_objects(d, {0, d.info().objects}, change)) return true;
  open_commit(d);
  return false;
}

void clear_marks(Descriptor& d, PageChange& change, uint64_t* resident) {
  visit_words_of(Pages{0, ChunkPages(d).count()}, [&](unsigned w, uint64_t) {
    const uint64_t there = d.resident(w).exchange(0, order::relaxed);  // relaxed: all objects are claimed
    if (resident != nullptr) resident[w] = there;
    change.resident -= static_cast<int>(popcount(there));
    // [page] release: after the resident bits; pairs with set_marks.
    change.dirty -= static_cast<int>(popcount(d.dirty(w).exchange(0, order::release)));
    d.aged(w).store(0, order::relaxed);  // relaxed: claimed
  });
}

namespace {

// Runs of pages that looked free: claims them one by one, purges them together, gives them back.
class Batch {
 public:
  // Purges at most `most` pages at once.
  Batch(Descriptor& d, unsigned most, PageChange& change) : d_(d), chunk_(d), most_(most), change_(change) {}

  void add(Pages run) {
    const Objects objects = chunk_.on(run);
    // An object with an absent page in its middle lies in two runs, and must be given back before it is claimed again.
    const bool shared = count_ != 0 && objects.first < runs_[count_ - 1].objects.end;
    if (shared || held_ + run.count() > most_) purge();
    if (!claim_objects(d_, objects, change_)) {
      for (unsigned page = run.first; page < run.end; ++page) {
        if (!is_free(d_, page)) unmark_dirty(d_, page, change_);
      }
      return;
    }
    runs_[count_] = {run, objects};
    ranges_[count_++] = {d_.chunk() + (size_t{run.first} << chunk_.shift()), size_t{run.count()} << chunk_.shift()};
    held_ += run.count();
    if (count_ == kRunsMost || held_ >= most_) purge();
  }

  void purge() {
    if (count_ == 0) return;
    // Absent pages are in the run of a whole chunk only, which is alone.
    const uint64_t gone = count_ == 1 ? purge(runs_[0].pages) : purge_ranges(ranges_, count_);
    for (unsigned i = 0; i < count_; ++i) settle(runs_[i], (gone >> i & 1) != 0);
    count_ = held_ = 0;
  }

  size_t bytes() const { return size_t{purged_ + held_} << chunk_.shift(); }  // purged, or about to be
  bool refused() const { return refused_; }                                   // by the kernel, at least a part

 private:
  static constexpr unsigned kRunsMost = 64;
  struct Run {
    Pages pages;
    Objects objects;
  };

  // Purges claimed pages, and counts those that are there: while the claim is held nobody changes which.
  bool purge(Pages pages) {
    unsigned absent = 0;
    visit_words_of(pages, [&](unsigned w, uint64_t mask) {
      absent += popcount(mask & ~d_.resident(w).load(order::relaxed));  // relaxed: the claim is held
    });
    return purge_pages(d_.chunk() + (size_t{pages.first} << chunk_.shift()), size_t{pages.count()} << chunk_.shift(),
                       size_t{absent} << chunk_.shift());
  }

  void settle(const Run& run, bool gone) {
    const unsigned step = static_cast<unsigned>(kPurgeRunBytes >> chunk_.shift());
    // If the kernel refuses a whole chunk, as for one locked page, its parts are tried.
    const unsigned length = gone || run.pages.count() <= step ? run.pages.count() : step;
    for (unsigned at = run.pages.first; at < run.pages.end; at += length) {
      const Pages part = {at, at + length < run.pages.end ? at + length : run.pages.end};
      note(part, gone || (length < run.pages.count() && purge(part)));
    }
    release_objects(d_, run.objects, change_);
  }

  // Notes that pages were purged (`gone`), or refused, while the claim is held.
  void note(Pages pages, bool gone) {
    if (!gone) refused_ = true;
    visit_words_of(pages, [&](unsigned w, uint64_t mask) {
      // Relaxed: the claim is held; the next taker comes after its release.
      d_.aged(w).fetch_and(~mask, order::relaxed);
      if (!gone) return;
      // relaxed: the claim is held
      const unsigned there = popcount(d_.resident(w).fetch_and(~mask, order::relaxed) & mask);
      change_.resident -= static_cast<int>(there);
      purged_ += there;
      // [page] release: after the resident bits; pairs with set_marks.
      change_.dirty -= static_cast<int>(popcount(d_.dirty(w).fetch_and(~mask, order::release) & mask));
    });
  }

  Descriptor& d_;
  const ChunkPages chunk_;
  const unsigned most_;
  PageChange& change_;
  bool refused_ = false;
  Run runs_[kRunsMost];
  os::PageRange ranges_[kRunsMost];
  unsigned count_ = 0, held_ = 0, purged_ = 0;  // of runs; of pages
};

// A huge page of which nothing is taken goes as a whole: the kernel drops its table of small pages only if all that it
// covers goes at once (Linux 6.14), and gives no huge page before. Returns bytes purged. *waits: nothing is taken, but
// something was a tick ago.
size_t purge_cluster(Descriptor& d, PurgeWhich which, bool* waits) {
  bool free = true, aged = true;
  const unsigned chunks = visit_cluster(d.chunk(), [&](Descriptor& other) {
    free = is_chunk_free(other);
    for (unsigned w = 0; w < kPageWords; ++w) {
      // Relaxed, both: marks only delay or hasten a purge.
      aged = aged && (other.dirty(w).load(order::relaxed) & ~other.aged(w).load(order::relaxed)) == 0;
    }
    return free;
  });
  if (!free || chunks != kClusterChunks) return 0;
  *waits = which == PurgeWhich::kAged && !aged;
  if (*waits) return 0;
  PageChange change;
  Descriptor* mine[kClusterChunks];
  unsigned n = 0, there = 0;
  visit_cluster(d.chunk(), [&](Descriptor& other) {
    if (!claim_chunk(other, change)) return false;
    mine[n++] = &other;
    for (unsigned w = 0; w < kPageWords; ++w)
      there += popcount(other.resident(w).load(order::relaxed));  // relaxed: claimed
    return true;
  });
  const size_t bytes = size_t{there} << ChunkPages(d).shift();
  const bool gone = n == kClusterChunks && purge_pages(cluster_start(d.chunk()), kClusterBytes, kClusterBytes - bytes);
  // Before others can touch it.
  if (gone) note_cluster_purged(d.chunk());
  for (unsigned i = 0; i < n; ++i) {
    if (gone) {
      clear_marks(*mine[i], change, nullptr);
      mine[i]->set_backing(Backing::kHugePurged);
    }
    release_objects(*mine[i], {0, mine[i]->info().objects}, change);
    open_commit(*mine[i]);
  }
  return gone ? bytes : 0;
}

// The least number of pages that make a purge of the chunk worthwhile: resident pages / 2^worth_shift.
unsigned least_worth(Descriptor& d, unsigned worth_shift) {
  if (worth_shift == kWorthAlways) return 0;
  unsigned there = 0;
  // Relaxed: an estimate.
  for (unsigned w = 0; w < kPageWords; ++w) there += popcount(d.resident(w).load(order::relaxed));
  return there >> worth_shift;
}

size_t purge_pages_in(Descriptor& d, PurgeWhich which, size_t most_bytes, unsigned worth_shift, bool* refused) {
  *refused = false;
  const bool one_page = is_huge_page(d);
  if (one_page) {
    bool waits = false;
    const size_t purged = purge_cluster(d, which, &waits);
    if (purged != 0 || waits) return purged;
  }
  // Of a chunk that is worth a call all chosen pages go, as the rest would not be worth another.
  const size_t most = worth_shift == kWorthAlways ? most_bytes : kChunkBytes;
  PageChange change;
  Choice choice = choose(d, which, one_page ? kChunkBytes : most);
  const unsigned break_shift = worth_shift < kBreakShift || which != PurgeWhich::kAged ? worth_shift : kBreakShift;
  const bool spare = one_page ? is_well_used(d, break_shift) : choice.count < least_worth(d, worth_shift);
  const bool outside = (choice.count != 0 || !one_page) && add_outside(d, &choice);
  if (!spare && choice.count != 0) prepare_purge(d);
  const unsigned run_most = static_cast<unsigned>(kPurgeRunBytes / os::page_bytes());
  Batch batch(d, run_most, change);
  for (Pages run = next_run(choice, 0, run_most); run.count() != 0 && !spare && batch.bytes() < most;) {
    batch.add(run);
    run = next_run(choice, run.end, run_most);
  }
  batch.purge();
  if (outside) open_commit(d);
  *refused = batch.refused();
  return batch.bytes();
}

size_t purge_chunk(Descriptor& d, PurgeWhich which, size_t most_bytes, unsigned worth_shift) {
  // Before the look, so that whatever is freed after it raises the hint again.
  lower_chunk(d, kDirty);
  bool refused;
  const size_t purged = purge_pages_in(d, which, most_bytes, worth_shift, &refused);
  // Pages that the kernel refused to purge, as it does locked ones, do not raise the hint: they are tried again after a
  // free in the chunk, or after retry_refused.
  if (refused) {
    d.block->home->refused.store(true, order::relaxed);  // relaxed: a hint, for retry_refused
  } else if (any_dirty(d)) {
    raise_chunk(d, kDirty);
  }
  return purged;
}

// Marks the chunk's dirty pages as aged. Returns how many are dirty.
unsigned age_chunk(Descriptor& d) {
  unsigned pages = 0;
  for (unsigned w = 0; w < kPageWords; ++w) {
    // Relaxed: marks only delay or hasten a purge.
    const uint64_t dirty = d.dirty(w).load(order::relaxed);
    pages += popcount(dirty);
    if ((dirty & ~d.aged(w).load(order::relaxed)) != 0) d.aged(w).fetch_or(dirty, order::relaxed);  // relaxed: a mark
  }
  return pages;
}

}  // namespace

PurgeStepDone purge_bins_step(Store& store, ChunkRound& round, const PurgeStep& step) {
  PurgeStepDone done{};
  unsigned checks = 0;
  done.complete = walk_dirty(store, round, step.around, [&](Descriptor& d, bool* again) {
    done.purged += purge_chunk(d, step.which, step.most_bytes - done.purged, step.worth_shift);
    *again = done.purged >= step.most_bytes;  // perhaps in the middle of the chunk
    if (*again) return false;
    const unsigned dirty = age_chunk(d);
    if (dirty != 0 && dirty >= least_worth(d, step.worth_shift)) done.worthwhile = true;
    return ++checks < step.most_chunks;
  });
  return done;
}

void retry_refused(Store& store) {
  for (unsigned bin = 1; bin < kBins; ++bin) {
    if (!store.bins[bin].refused.exchange(false, order::relaxed)) continue;  // relaxed: a hint
    visit_chunks(store, bin_id(bin), [](Descriptor& d) {
      raise_chunk(d, kDirty);
      return true;
    });
  }
}

void age_bins(Store& store) {
  for (unsigned bin = 1; bin < kBins; ++bin) {
    visit_hinted(store, kDirty, bin, {}, {}, [](Descriptor& d) {
      age_chunk(d);
      return true;
    });
  }
}

}  // namespace folio
