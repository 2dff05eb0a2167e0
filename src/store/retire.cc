// Claims a free chunk for good, gives its address space back or passes it on, and keeps its descriptor for the same
// place.
#include "store/retire.h"

#include "config/options.h"
#include "os/os.h"
#include "space/chunks.h"
#include "space/field.h"
#include "space/pages.h"
#include "store/commit.h"
#include "store/dirty_walk.h"
#include "store/occupancy.h"
#include "store/purge.h"
#include "store/residency.h"

namespace folio {

namespace {

constexpr unsigned kLooksMost = 32;  // at chunks, for one that fits: a few cache misses each

bool purge_all(Descriptor& d) {
  const bool nothing = nothing_there(d);
  prepare_purge(d);
  return nothing || purge_pages(d.chunk(), kChunkBytes);
}

Atomic<Descriptor*>& list_of(HintBlock& block, unsigned slot) { return block.retired[slot / 64]; }

void keep(Descriptor& d) {
  Atomic<Descriptor*>& list = list_of(*d.block, window_slot(d.first));
  Descriptor* head = list.load(order::relaxed);  // relaxed: the compare_exchange decides
  do {
    d.retired = head;
    // [descriptor] release: the whole descriptor and its link; pairs with take_retired.
  } while (!list.compare_exchange(head, &d, order::release));
}

// A claimed chunk leaves its bin.
void leave(Descriptor& d) {
  const unsigned slot = window_slot(d.first);
  // Relaxed: an index. Before the place can be opened again.
  d.block->opened[slot / 64].fetch_and(~(uint64_t{1} << slot % 64), order::relaxed);
  d.block->home->chunks.sub(1);
  set_chunk(d.block->window, d.chunk(), nullptr, index(BinId::kNone));
  keep(d);
}

bool retire(Descriptor& d) {
  PageChange change;
  if (!is_chunk_free(d) || !claim_chunk(d, change)) return false;
  if (!purge_all(d)) {
    release_objects(d, {0, d.info().objects}, change);
    open_commit(d);
    return false;
  }
  clear_marks(d, change, nullptr);
  leave(d);
  return_chunk(d.chunk());
  return true;
}

// Whether at least half of the chunk is resident, in so few rows that objects of any size find room, and all that is
// resident looks free: a few cache lines tell.
bool looks_worth_inheriting(Descriptor& d) {
  constexpr unsigned kRowsMost = 4;
  const ChunkPages chunk(d);
  unsigned there = 0, rows = 0;
  uint64_t before = 0;  // bit 0: the page below is resident
  bool all = true;
  visit_words_of(chunk.in_use(), [&](unsigned w, uint64_t mask) {
    const uint64_t resident = d.resident(w).load(order::relaxed) & mask;     // relaxed: a guess, the claim decides
    all = all && (resident & ~d.dirty(w).load(order::relaxed) & mask) == 0;  // relaxed: as above
    there += popcount(resident);
    rows += popcount(resident & ~(resident << 1 | before));
    before = resident >> 63;
  });
  return all && there >= chunk.count() / 2 && rows <= kRowsMost;
}

Backing backing_of_next(Backing backing) {
  return backing == Backing::kDense || backing == Backing::kHugePurged ? Backing::kSmallPurged : backing;
}

bool inherit(Descriptor& d, Inherited* from) {
  PageChange change;
  if (!looks_worth_inheriting(d) || !is_chunk_free(d) || !claim_chunk(d, change)) return false;
  clear_marks(d, change, from->resident);
  from->committed = static_cast<uint16_t>(committed_bytes(d) / kPageBytesLeast);
  from->backing = backing_of_next(d.backing());
  from->forks_before = d.forks_before();
  leave(d);
  from->chunk = d.chunk();
  return true;
}

}  // namespace

// Takes the whole list and puts the rest back, so that no link changes while a thread reads it. A thread that finds the
// list empty meanwhile makes a new descriptor, and then the place has two.
Descriptor* take_retired(HintBlock& block, const char* chunk) {
  Atomic<Descriptor*>& list = list_of(block, window_slot(chunk));
  if (list.load(order::relaxed) == nullptr) return nullptr;  // relaxed: a glance
  Descriptor* found = nullptr;
  // [descriptor] acquire: pairs with keep.
  for (Descriptor *d = list.exchange(nullptr, order::acquire), *next; d != nullptr; d = next) {
    next = d->retired;
    if (found == nullptr && d->chunk() == chunk) {
      found = d;
    } else {
      keep(*d);
    }
  }
  return found;
}

bool renew(Descriptor& d) {
  if (!os::commit(d.chunk(), kChunkBytes)) {
    keep(d);
    return false;
  }
  // Relaxed: all its objects are taken, and the give of these publishes it.
  d.committed.store(kChunkBytes / kPageBytesLeast, order::relaxed);
  return true;
}

namespace {

int64_t dirty_beyond_bins() { return page_counts.dirty_large.get(); }
int64_t dirty_in_bins() { return page_counts.dirty.get() - dirty_beyond_bins(); }

// Whether a look is worth it where so much is dirty: half the floor. After one in vain 2 MiB more must be.
bool is_worth_a_look(int64_t dirty, Hint<int64_t>& from) {
  const int64_t more = dirty + static_cast<int64_t>(kClusterBytes);
  if (more < from.get()) from.set(more);
  return dirty > (options.dirty_floor << 20) / 2 && dirty >= from.get();
}
void was_in_vain(int64_t dirty, Hint<int64_t>& from) { from.set(dirty + static_cast<int64_t>(kClusterBytes)); }

// Of looks in vain in a row the 1st, 2nd, 4th, 8th, ... ask for the caches to be drained: where live objects or other
// threads' magazines keep the chunks, that does not help.
void note_in_vain(Store& store) {
  const uint32_t n = store.in_vain.get() + 1;
  store.in_vain.set(n);
  if (is_power_of_two(n)) store.pinned.set(true);
}

// A chunk that large objects have left.
Inherited borrow_chunk(Store& store) {
  Inherited from;
  uint64_t granules;
  from.chunk = acquire_resident_chunk(&granules);
  if (from.chunk == nullptr) {
    was_in_vain(dirty_beyond_bins(), store.borrow_from);
    return from;
  }
  const size_t page = os::page_bytes();
  for (size_t at = 0; at < kChunkBytes; at += page) {
    const size_t granule = at >> kGranuleShift;
    from.resident[at / page / 64] |= (granules >> granule & 1) << at / page % 64;
  }
  from.committed = kChunkBytes / kPageBytesLeast;
  return from;
}

}  // namespace

bool may_inherit(Store& store) {
  return is_worth_a_look(dirty_in_bins(), store.inherit_from) ||
         is_worth_a_look(dirty_beyond_bins(), store.borrow_from);
}

Inherited inherit_chunk(Store& store, BinId bin) {
  Inherited from;
  if (is_worth_a_look(dirty_in_bins(), store.inherit_from)) {
    unsigned looks = 0;
    walk_dirty(store, store.inherited_to, true,
               [&](Descriptor& d, bool*) { return (d.bin == bin || !inherit(d, &from)) && ++looks < kLooksMost; });
    if (from.chunk != nullptr) {
      store.in_vain.set(0);
      return from;
    }
    was_in_vain(dirty_in_bins(), store.inherit_from);
    note_in_vain(store);
  }
  return is_worth_a_look(dirty_beyond_bins(), store.borrow_from) ? borrow_chunk(store) : from;
}

bool give_up_chunk(Store& store, BinId bin) {
  Hint<uint64_t>& place = store.of(bin).swapped_to;
  const ChunkPlace start{index(bin), place.get()};
  unsigned looks = 0;
  uint64_t last = 0;
  bool done = false;
  const auto visit = [&](Descriptor& d) {
    last = reinterpret_cast<uintptr_t>(d.first) >> kChunkShift;
    done = nothing_there(d) && retire(d);
    return !done && ++looks < kLooksMost;
  };
  bool complete = visit_hinted(store, kEmpty, index(bin), start, {}, visit);
  // Around: else one of those before the place would stay each time.
  if (complete && start.number != 0) complete = visit_hinted(store, kEmpty, index(bin), {index(bin), 0}, start, visit);
  place.set(complete ? 0 : last);
  return done;
}

void settle_in(Descriptor& d, const Inherited& from) {
  d.set_backing(from.backing, from.forks_before);
  PageChange change;
  visit_words_of(Pages{0, ChunkPages(d).count()}, [&](unsigned w, uint64_t) {
    d.resident(w).store(from.resident[w], order::relaxed);  // relaxed: not published yet
    change.resident += static_cast<int>(popcount(from.resident[w]));
  });
}

size_t retire_free_chunks(Store& store, bool unmap) {
  size_t retired = 0;
  for (unsigned bin = 1; bin < kBins; ++bin) {
    visit_chunks(store, bin_id(bin), [&](Descriptor& d) {
      retired += retire(d) ? 1 : 0;
      return true;
    });
  }
  const size_t unmapped = unmap ? unmap_vacant_clusters() * kClusterChunks : 0;
  return retired > unmapped ? retired : unmapped;
}

}  // namespace folio
