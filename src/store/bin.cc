// Takes objects out of folios, and opens a chunk when no folio has room.
//
//   take_objects -> take_inherited, take_warm, take_cold -> take_from_chunk -> take_from_folio
//                                                        -> take_resident_of -> take_resident_in
//                -> take_from_others -> inherit (retire)
//                -> open_chunk
//   take_from_folio, take_resident_in -> set_bits (occupancy), note_taken (residency)
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
#include "store/watch.h"

namespace folio {

namespace {

// *why changes if the folio has free objects that cannot be used: not committed, or not resident near a limit.
unsigned take_from_folio(Descriptor& d, unsigned folio, Fullness peeked, void** objects, unsigned want, bool* zero,
                         Commit* why) {
  const BinInfo& info = d.info();
  const uint64_t valid = valid_in(info, folio);
  const uint64_t now = d.occupancy(info, folio).load(order::relaxed);  // relaxed: a guess, the fetch_or decides
  const uint64_t free = fullness_of(now, valid) == peeked ? valid & ~now : 0;
  if (free == 0) {
    lower_folio(d, folio, peeked);
    return 0;
  }
  // Of a purged folio, resident objects first. (Of objects of a page and more take_resident has tried these.)
  const bool purged = now != 0 && was_purged(d) && !has_pages_of_its_own(info);
  uint64_t there = purged ? resident_objects(d, folio, free) : 0;
  // Near a limit, resident objects only.
  const bool tight = !has_room(want * size_t{info.size} + os::page_bytes());
  if (tight) there = resident_objects(d, folio, free);
  if (tight && there == 0) {
    *why = Commit::kRefused;
    return 0;
  }
  Commit result;
  const uint64_t choice = commit_objects(d, folio, lowest_bits(there != 0 ? there : free, want), &result);
  if (choice == 0) {
    *why = result;
    return 0;
  }
  const uint64_t before = set_bits(d, folio, choice);
  const uint64_t mine = choice & ~before;
  if (fullness_of(before | choice, valid) != peeked) lower_folio(d, folio, peeked);
  if (mine == 0) return 0;
  if (zero != nullptr) *zero = is_untouched(d, folio * kFolioObjects + lowest_bit(mine));
  note_taken(d, folio, mine);
  unsigned count = 0;
  char* const first = d.slot(folio * kFolioObjects);
  for (uint64_t rest = mine; rest != 0; rest &= rest - 1)
    objects[count++] = first + lowest_bit(rest) * size_t{info.size};
  return count;
}

// *why: as in take_from_folio, which then ends the search.
unsigned take_from_chunk(Descriptor& d, Fullness fullness, void** objects, unsigned want, bool* zero, Commit* why) {
  unsigned got = 0;
  for (int folio = 0; got < want && *why == Commit::kDone;) {
    // From the last folio on: those below are used up, or were raised again since, for the next call.
    folio = find_folio(d, fullness, static_cast<unsigned>(folio));
    if (folio < 0) {
      lower_chunk(d, fullness);
      break;
    }
    got += take_from_folio(d, static_cast<unsigned>(folio), fullness, objects + got, want - got,
                           got == 0 ? zero : nullptr, why);
  }
  return got;
}

// Lowers a chunk's dirty hint, and raises it again if a page is dirty.
void repair_dirty(Descriptor& d) {
  lower_chunk(d, kDirty);
  if (any_dirty(d)) raise_chunk(d, kDirty);
}

// The first dirty page at or behind `from`, or the chunk's end.
unsigned next_dirty(Descriptor& d, unsigned from) {
  for (unsigned w = from / 64; w < kPageWords; ++w) {
    uint64_t rest = d.dirty(w).load(order::relaxed);  // relaxed: a guess, the fetch_or decides
    if (w == from / 64) rest &= ~low_mask(from % 64);
    if (rest != 0) return w * 64 + lowest_bit(rest);
  }
  return kPageWords * 64;
}

// Takes free objects of a folio whose pages are all resident.
unsigned take_resident_in(Descriptor& d, unsigned folio, void** objects, unsigned want) {
  const uint64_t now = d.occupancy(folio).load(order::relaxed), valid = d.valid(folio);  // relaxed: set_bits decides
  const uint64_t choice = lowest_bits(resident_objects(d, folio, valid & ~now), want);
  if (choice == 0) return 0;
  const uint64_t before = set_bits(d, folio, choice), mine = choice & ~before;
  const Fullness was = fullness_of(before, valid);
  if (was != kFull && fullness_of(before | choice, valid) != was) lower_folio(d, folio, was);
  if (mine == 0) return 0;
  note_taken(d, folio, mine);
  unsigned got = 0;
  for (uint64_t rest = mine; rest != 0; rest &= rest - 1) {
    objects[got++] = object_at(d, folio * kFolioObjects + lowest_bit(rest));
  }
  return got;
}

// The same of the chunk's folios with dirty pages.
unsigned take_resident_of(Descriptor& d, void** objects, unsigned want) {
  const ChunkPages chunk(d);
  unsigned got = 0, folio = 0;
  for (unsigned page = next_dirty(d, 0); page < kPageWords * 64 && got < want;) {
    const Objects on = chunk.on({page, page + 1});
    if (folio < on.first / kFolioObjects) folio = on.first / kFolioObjects;
    for (; folio * kFolioObjects < on.end && got < want; ++folio) {
      got += take_resident_in(d, folio, objects + got, want - got);
    }
    // Each folio once, though it may have more than one such page.
    if (folio == d.info().folios) break;
    const unsigned next = chunk.of(folio * kFolioObjects).first;
    page = next_dirty(d, next > page ? next : page + 1);
  }
  return got;
}

// Where takes of one call put what they get.
struct Taking {
  void** objects;
  unsigned want;
  bool *zero, *refused;  // may be null
  unsigned got = 0;

  bool done() const { return got == want; }
  void add_resident(unsigned more) {
    if (got == 0 && more != 0 && zero != nullptr) *zero = false;
    got += more;
  }
};

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
      const unsigned here = take_resident_of(*d, t.objects + t.got, t.want - t.got);
      t.add_resident(here);
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
  const unsigned here = take_resident_of(*d, t.objects + t.got, t.want - t.got);
  t.add_resident(here);
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
      t.got += take_from_chunk(*d, fullness, t.objects + t.got, t.want - t.got, t.got == 0 ? t.zero : nullptr, &here);
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
  if (has_pages_of_its_own(info_of(bin))) {
    take_of_class(blocks, kNearlyFull, t);
    take_of_class(blocks, kPartlyFull, t);
  }
  take_of_class(blocks, kEmpty, t);
}

// From empty folios on pages that are in use, where a page has several. (Without it a bin of 16 bytes used half of each
// page that it inherited.)
void take_empty_on_used_pages(HintBlock* blocks, BinId bin, Taking& t) {
  constexpr unsigned kInVainMost = 16;
  if (size_t{info_of(bin).size} * kFolioObjects >= os::page_bytes()) return;
  unsigned in_vain = 0;
  for (HintBlock* block = blocks; block != nullptr; block = block->next) {
    for (unsigned slot = 0; slot < kWindowChunks;) {
      Descriptor* const d = find_chunk(*block, kEmpty, slot);
      if (d == nullptr) break;
      slot = window_slot(d->first) + 1;
      for (int folio = 0; (folio = find_folio(*d, kEmpty, static_cast<unsigned>(folio))) >= 0; ++folio) {
        const unsigned here = take_resident_in(*d, static_cast<unsigned>(folio), t.objects + t.got, t.want - t.got);
        t.add_resident(here);
        if (t.done() || (here == 0 && ++in_vain == kInVainMost)) return;
      }
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

unsigned take_objects_in_open_chunks(Store& store, BinId bin, void** objects, unsigned want, bool* zero,
                                     bool* refused) {
  Taking t = {objects, want, zero, refused};
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

unsigned take_objects(Store& store, BinId bin, void** objects, unsigned want, bool* zero) {
  Bin& b = store.of(bin);
  const bool growing = note_growth(b);
  for (;;) {
    bool refused = false;
    Taking t = {objects, want, zero, &refused};
    HintBlock* const blocks = blocks_of(store, bin);
    take_inherited(b, t);
    take_warm(blocks, bin, t);
    take_from_others(store, bin, blocks, t);
    take_cold(blocks, bin, t);
    if (t.got != 0) return t.got;
    // The search lowered stale hints and raised right ones, and this repairs others: they may show room.
    repair_next_chunks(store, bin);
    const unsigned got = take_objects_in_open_chunks(store, bin, objects, want, zero, &refused);
    if (got != 0) return got;
    // If the kernel refuses memory for free objects, it would for a new chunk's too, but for one that a field lends.
    Inherited from;
    if (refused && (from.chunk = has_room(kChunkBytes) ? acquire_lent_chunk() : nullptr) == nullptr) return 0;
    if (refused) from.committed = kChunkBytes / kPageBytesLeast;
    if (open_chunk(store, bin, from, growing) == nullptr) return 0;
  }
}

}  // namespace folio
