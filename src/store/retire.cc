// Claims a free chunk for good, gives its address space back, and keeps its descriptor for the same place.
#include "store/retire.h"

#include "os/os.h"
#include "space/chunks.h"
#include "space/pages.h"
#include "store/commit.h"
#include "store/occupancy.h"
#include "store/purge.h"
#include "store/residency.h"

namespace folio {

namespace {

bool peek_free(Descriptor& d) {
  for (unsigned folio = 0; folio < d.info().folios; ++folio) {
    if (d.occupancy(folio).load(order::relaxed) != 0) return false;  // relaxed: a guess, the claim decides
  }
  return true;
}

bool leave(Descriptor& d, PageChange& change) {
  const Pages all{0, ChunkPages(d).count()};
  uint64_t resident = 0;
  visit_words_of(all,
                 [&](unsigned w, uint64_t) { resident |= d.resident(w).load(order::relaxed); });  // relaxed: claimed
  prepare_purge(d);
  if (resident != 0 && !purge_pages(d.chunk(), kChunkBytes)) return false;
  visit_words_of(all, [&](unsigned w, uint64_t) {
    // Relaxed: all objects are claimed.
    change.resident -= static_cast<int>(popcount(d.resident(w).exchange(0, order::relaxed)));
    change.dirty -= static_cast<int>(popcount(d.dirty(w).exchange(0, order::relaxed)));  // relaxed: claimed
    d.aged(w).store(0, order::relaxed);                                                  // relaxed: claimed
  });
  return true;
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

bool retire(Descriptor& d) {
  if (!peek_free(d)) return false;
  if (!close_commit(d)) return false;
  const Objects all{0, d.info().objects};
  PageChange change;
  if (!claim_objects(d, all, change)) {
    open_commit(d);
    return false;
  }
  if (!leave(d, change)) {
    release_objects(d, all, change);
    open_commit(d);
    return false;
  }
  char* const chunk = d.chunk();
  d.block->home->chunks.sub(1);
  set_chunk(d.block->window, chunk, nullptr, index(BinId::kNone));
  keep(d);
  return_chunk(chunk);
  return true;
}

}  // namespace

// Takes the whole list and puts the rest back, so that no link changes while a thread reads it. A thread that finds the
// list empty meanwhile makes a new descriptor.
Descriptor* take_retired(HintBlock& block, const char* chunk) {
  Atomic<Descriptor*>& list = list_of(block, window_slot(chunk));
  if (list.load(order::relaxed) == nullptr) return nullptr;  // relaxed: a glance
  Descriptor* found = nullptr;
  // [descriptor] acquire: pairs with keep.
  for (Descriptor *d = list.exchange(nullptr, order::acquire), *next; d != nullptr; d = next) {
    next = d->retired;
    if (d->chunk() == chunk) {
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

size_t retire_free_chunks(Store& store) {
  size_t retired = 0;
  for (unsigned bin = 1; bin < kBins; ++bin) {
    visit_chunks(store, bin_id(bin), [&](Descriptor& d) {
      retired += retire(d) ? 1 : 0;
      return true;
    });
  }
  return retired;
}

}  // namespace folio
