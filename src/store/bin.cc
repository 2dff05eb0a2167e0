// Takes objects of a bin's chunks, and opens a chunk when none has room.
//
//   take_objects -> take_inherited, take_warm, take_cold -> take_from_chunk, take_resident_of (take)
//                -> take_from_others -> inherit (retire)
//                -> open_chunk
#include "store/bin.h"

#include "os/os.h"
#include "space/chunks.h"
#include "space/metadata.h"
#include "space/pages.h"
#include "space/room.h"
#include "store/cluster.h"
#include "store/commit.h"
#include "store/misuse.h"
#include "store/purge.h"
#include "store/residency.h"
#include "store/retire.h"
#include "store/take.h"
#include "store/watch.h"

namespace folio {

namespace {

// Lowers a chunk's dirty hint, and raises it again if a page is dirty.
void repair_dirty(Descriptor& d) {
  lower_chunk(d, kDirty);
  if (any_dirty(d)) raise_chunk(d, kDirty);
}

// Takes resident objects before any that would fault. Of objects of a page and more, whatever folio they are in: they
// are purged one by one. Of smaller ones once no folio in use has room. (Without it super server takes 1.36 (1.20 to
// 1.66) times the memory.)
void take_resident(HintBlock* blocks, Taking& t) {
  constexpr unsigned kInVainMost = 4;  // chunks whose dirty pages are all parts of objects
  unsigned in_vain = 0;
  for (HintBlock* block = blocks; block != nullptr; block = block->next) {
    for (unsigned slot = 0; slot < kWindowChunks;) {
      Descriptor* const d = find_chunk(*block, kDirty, slot);
      if (d == nullptr) break;
      const unsigned here = take_resident_of(*d, t);
      if (t.done()) return;
      if (here == 0) repair_dirty(*d);
      if (here == 0 && ++in_vain == kInVainMost) return;
      slot = window_slot(d->first) + 1;
    }
  }
}

HintBlock* block_for(Store& store, BinId bin, Window* window) {
  Atomic<HintBlock*>& head = store.of(bin).blocks;
  // [blocks] acquire: sees the blocks' headers; pairs with the compare_exchange below.
  HintBlock* first = head.load(order::acquire);
  for (HintBlock* block = first; block != nullptr; block = block->next) {
    if (block->window == window) return block;
  }
  auto* block = static_cast<HintBlock*>(metadata_alloc(sizeof(HintBlock)));
  if (block == nullptr) return nullptr;
  block->window = window;
  block->home = &store.of(bin);
  block->bin = bin;
  do {
    block->next = first;
    // [blocks] release: publishes the header; pairs with the loads of `blocks`. Two threads may each add a block for
    // one window: every descriptor names its own, so both are used.
  } while (!head.compare_exchange(first, block, order::release));
  return block;
}

// Makes all that a chunk needs, and writes its header. Null if there is no memory: what was made serves the next
// attempt, as the descriptor comes last. *renewed: the descriptor is a retired one, whose objects are all taken.
Descriptor* describe(Store& store, char* chunk, BinId bin, bool* renewed) {
  if (!chunk_table_open(chunk, kChunkBytes)) return nullptr;
  Window* window = window_make(chunk);
  HintBlock* block = window == nullptr ? nullptr : block_for(store, bin, window);
  if (block == nullptr) return nullptr;
  Descriptor* d = take_retired(*block, chunk);
  *renewed = d != nullptr && renew(*d);
  if (*renewed) return d;
  if (d != nullptr) return nullptr;  // it waits again; one more for the place would never serve
  d = static_cast<Descriptor*>(metadata_alloc(Descriptor::bytes_for(bin)));
  if (d == nullptr) return nullptr;
  d->first = first_object(chunk, info_of(bin));
  d->block = block;
  d->bin = bin;
  d->seal = Descriptor::seal_for(d->first, bin);
  return d;
}

// A chunk, and what it has of pages: all, if it is a part of a huge page, which may be there.
Inherited new_chunk(const Store& store, BinId bin, bool growing) {
  Inherited chunk;
  bool is_new;
  chunk.chunk = acquire_chunk(comes_whole(bin, store.of(bin).chunks.get(), growing), &is_new);
  if (chunk.chunk == nullptr) return chunk;
  if (is_cluster(chunk.chunk, kClusterCommitted)) chunk.committed = kChunkBytes / kPageBytesLeast;
  chunk.forks_before = forks.get();
  if (is_cluster(chunk.chunk, kClusterHuge)) chunk.backing = Backing::kHuge;
  if (chunk.backing != Backing::kHuge && !(is_new && is_cluster(chunk.chunk, kClusterCame))) return chunk;
  const auto pages = static_cast<unsigned>(kChunkBytes / os::page_bytes());
  visit_words_of(Pages{0, pages}, [&](unsigned w, uint64_t mask) { chunk.resident[w] = mask; });
  return chunk;
}

// Opens a chunk: a new one, or one that was inherited. Its hint publishes it: a thread that stops for ever before
// raise_new_chunk loses the chunk's address space, and the pages that it has. Null if there is no memory.
Descriptor* open_chunk(Store& store, BinId bin, const Inherited& inherited, bool growing = false) {
  const Inherited from = inherited.chunk != nullptr ? inherited : new_chunk(store, bin, growing);
  char* const chunk = from.chunk;
  if (chunk == nullptr) return nullptr;
  bool renewed = false;
  Descriptor* d = describe(store, chunk, bin, &renewed);
  if (d == nullptr) {
    // The next attempt has it again. What the kernel does not purge, as it does not locked pages, is lost.
    break_cluster(chunk);
    if (purge_pages(chunk, kChunkBytes, kChunkBytes)) return_chunk(chunk);
    return nullptr;
  }
  settle_in(*d, from);
  // Relaxed: not published yet. Of a renewed one all is committed.
  if (!renewed) d->committed.store(from.committed, order::relaxed);
  const unsigned slot = window_slot(chunk);
  // Relaxed: an index. Before the entry, so that a thread that stops in between hides no chunk from walks.
  d->block->opened[slot / 64].fetch_or(uint64_t{1} << slot % 64, order::relaxed);
  set_chunk(d->block->window, chunk, d, watch_wanted(store, bin) ? kCodeWatched + index(bin) : index(bin));
  store.of(bin).chunks.add(1);
  arch::store_barrier();  // before the program may pass on an address of it: CONCURRENCY.md, "Addresses"
  PageChange change;
  if (renewed) {
    release_objects(*d, {0, d->info().objects}, change);
    // Folios' hints left from before would keep clear_bits from raising the chunk's.
    raise_chunk(*d, kNearlyFull);
    raise_chunk(*d, kPartlyFull);
  } else {
    mark_dirty(*d, ChunkPages(*d).in_use(), change);
  }
  raise_new_chunk(*d);
  return d;
}

// From the chunk that the bin has inherited last: a walk for resident objects may give up before it comes there.
void take_inherited(Bin& b, Taking& t) {
  Descriptor* d = b.inherited.load(order::acquire);  // [descriptor] acquire: pairs with inherit
  if (d == nullptr || t.done()) return;
  const unsigned here = take_resident_of(*d, t);
  if (here == 0) b.inherited.compare_exchange(d, nullptr, order::relaxed);  // relaxed: a hint
}

HintBlock* blocks_of(Store& store, BinId bin) {
  return store.of(bin).blocks.load(order::acquire);  // [blocks] acquire: pairs with block_for
}

// How many chunks of a bin are full, as no hint leads to them, and how many have room on pages that may fault: of
// objects below a page in empty folios, of larger ones in any that is not full. An estimate.
struct ChunkCounts {
  unsigned full = 0, cold = 0;
};
ChunkCounts count_chunks(HintBlock* blocks, BinId bin) {
  constexpr unsigned kStaleMost = 4;  // chunks whose last empty folio was taken since their hint was raised
  const bool any = has_pages_of_its_own(info_of(bin));
  ChunkCounts n;
  for (HintBlock* block = blocks; block != nullptr; block = block->next) {
    unsigned slot = 0;
    for (unsigned i = 0; i < kStaleMost; ++i) {
      Descriptor* const d = find_chunk(*block, kEmpty, slot);
      if (d == nullptr) break;
      if (find_folio(*d, kEmpty) < 0) lower_chunk(*d, kEmpty);
      slot = window_slot(d->first) + 1;
    }
    for (unsigned w = 0; w < kWindowChunks / 64; ++w) {
      const uint64_t opened = block->opened[w].load(order::relaxed);  // relaxed: an index
      if (opened == 0) continue;
      const uint64_t empty = block->chunks[kEmpty][w].load(order::relaxed);  // relaxed: an estimate
      uint64_t hinted = empty;
      // Relaxed: as above.
      for (unsigned f = kNearlyFull; f < kEmpty; ++f) hinted |= block->chunks[f][w].load(order::relaxed);
      n.full += popcount(opened & ~hinted);
      n.cold += popcount(opened & (any ? hinted : empty));
    }
  }
  return n;
}

bool inherit(Store& store, BinId bin, HintBlock* blocks) {
  constexpr unsigned kColdShift = 2;
  const ChunkCounts n = count_chunks(blocks, bin);
  // One that wants a few objects would keep a whole chunk from all others. (When any bin inherited, a few objects of
  // each of forty sizes after 50 MiB of one size, and then that again, peaked at 105 MB in place of 55.)
  if (n.full == 0) return false;
  // Where much of its own is purged, and objects that stay keep it from giving that up, it uses that. (Else 16 objects
  // that stay of each 32 MiB, large ones between: 1,100 chunks after 500 turns.)
  const bool crowded = n.cold > 1 + (n.full >> kColdShift);
  if (crowded && !give_up_chunk(store, bin)) return false;
  const Inherited from = inherit_chunk(store, bin);
  if (from.chunk == nullptr) return false;
  Descriptor* const d = open_chunk(store, bin, from);
  if (d == nullptr) return false;
  store.of(bin).inherited.store(d, order::release);  // [descriptor] release: pairs with take_inherited
  if (!crowded) give_up_chunk(store, bin);
  return true;
}

void take_of_class(HintBlock* blocks, Fullness fullness, Taking& t) {
  for (HintBlock* block = blocks; block != nullptr && !t.done(); block = block->next) {
    for (unsigned slot = 0; !t.done();) {
      Descriptor* d = find_chunk(*block, fullness, slot);
      if (d == nullptr) break;
      Commit here = Commit::kDone;
      take_from_chunk(*d, fullness, t, &here);
      if (here == Commit::kDone) continue;
      if (here == Commit::kRefused && t.refused != nullptr) *t.refused = true;
      slot = window_slot(d->first) + 1;
    }
  }
}

// What is in use or resident: of objects below a page from folios in use, then of each size resident ones.
void take_warm(HintBlock* blocks, BinId bin, Taking& t) {
  if (!has_pages_of_its_own(info_of(bin))) {
    take_of_class(blocks, kNearlyFull, t);
    take_of_class(blocks, kPartlyFull, t);
  }
  if (!t.done()) take_resident(blocks, t);
}
// Whether the rest is worth pages that fault: of objects of a page and more not where there were resident ones.
bool needs_cold(BinId bin, const Taking& t) { return has_pages_of_its_own(info_of(bin)) ? t.got == 0 : !t.done(); }

void take_cold(HintBlock* blocks, BinId bin, Taking& t) {
  if (!needs_cold(bin, t)) return;
  // Of objects below a page, too: the rest of an empty folio of which a part was resident, before the folio behind it.
  // (Also where nothing was: mallocs that fail at a hard limit took up to 1.25 times the instructions.)
  if (has_pages_of_its_own(info_of(bin)) || t.got != 0) {
    take_of_class(blocks, kNearlyFull, t);
    take_of_class(blocks, kPartlyFull, t);
  }
  take_of_class(blocks, kEmpty, t);
}

// From empty folios on pages that are in use, in chunks without a dirty page, where a page has several folios. (Without
// it a bin of 16 bytes used half of each page that it inherited.)
void take_empty_on_used_pages(HintBlock* blocks, BinId bin, Taking& t) {
  constexpr unsigned kInVainMost = 16;
  if (size_t{info_of(bin).size} * kFolioObjects >= os::page_bytes()) return;
  unsigned in_vain = 0;
  for (HintBlock* block = blocks; block != nullptr; block = block->next) {
    for (unsigned slot = 0; slot < kWindowChunks;) {
      Descriptor* const d = find_chunk(*block, kEmpty, slot);
      if (d == nullptr) break;
      slot = window_slot(d->first) + 1;
      const unsigned here = take_resident_of(*d, t);
      if (t.done() || (here == 0 && ++in_vain == kInVainMost)) return;
    }
  }
}

// What is resident in another bin, or free beyond bins, before pages that would fault.
void take_from_others(Store& store, BinId bin, HintBlock* blocks, Taking& t) {
  if (!needs_cold(bin, t) || !may_inherit(store)) return;
  take_empty_on_used_pages(blocks, bin, t);
  if (needs_cold(bin, t) && inherit(store, bin, blocks)) take_inherited(store.of(bin), t);
}

}  // namespace

unsigned take_objects_in_open_chunks(Store& store, BinId bin, void** objects, unsigned want, bool* refused) {
  Taking t = {objects, want, refused};
  HintBlock* const blocks = blocks_of(store, bin);
  take_warm(blocks, bin, t);
  take_cold(blocks, bin, t);
  return t.got;
}

namespace {

// Repairs the hints (hints.h) of the bin's next two chunks: two per call, so that the walk gets round although the bin
// grows by a chunk per call.
void repair_next_chunks(Store& store, BinId bin) {
  constexpr unsigned kAtOnce = 2;
  Bin& b = store.of(bin);
  HintBlock* block = b.repair_block.load(order::acquire);  // [blocks] acquire: pairs with the store below
  unsigned slot = b.repair_slot.load(order::relaxed);      // relaxed: any chunk will do
  if (block == nullptr) {
    block = b.blocks.load(order::acquire);  // [blocks] acquire: pairs with block_for
    slot = 0;
  }
  for (unsigned i = 0; i < kAtOnce; ++i) {
    if (Descriptor* const d = next_chunk(&block, &slot)) repair_chunk(*d);
  }
  b.repair_block.store(block, order::release);  // [blocks] release: passes on what the load of `blocks` saw
  b.repair_slot.store(slot, order::relaxed);    // relaxed: any chunk will do
}

}  // namespace

unsigned take_objects(Store& store, BinId bin, void** objects, unsigned want) {
  Bin& b = store.of(bin);
  const bool growing = note_growth(b);
  for (;;) {
    bool refused = false;
    Taking t = {objects, want, &refused};
    HintBlock* const blocks = blocks_of(store, bin);
    take_inherited(b, t);
    take_warm(blocks, bin, t);
    take_from_others(store, bin, blocks, t);
    take_cold(blocks, bin, t);
    if (t.got != 0) return t.got;
    // The search lowered stale hints and raised right ones, and this repairs others: they may show room.
    repair_next_chunks(store, bin);
    const unsigned got = take_objects_in_open_chunks(store, bin, objects, want, &refused);
    if (got != 0) return got;
    // If the kernel refuses memory for free objects, it would for a new chunk's too, but for one that a field lends.
    Inherited from;
    if (refused && (from.chunk = has_room(kChunkBytes) ? acquire_lent_chunk() : nullptr) == nullptr) return 0;
    if (refused) from.committed = kChunkBytes / kPageBytesLeast;
    if (open_chunk(store, bin, from, growing) == nullptr) return 0;
  }
}

}  // namespace folio
