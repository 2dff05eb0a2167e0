// Takes objects out of folios, gives them back, and opens a chunk when no folio has room.
//
//   take_objects -> take_objects_in_open_chunks -> take_from_chunk -> take_from_folio
//                -> open_chunk
//   take_from_folio -> commit_objects, set_bits (occupancy), note_taken (residency)
//   give_objects, give_lists -> gather -> Giving::give -> clear_bits (occupancy), note_given (residency)
#include "store/bin.h"

#include "config/options.h"
#include "os/os.h"
#include "space/metadata.h"
#include "space/pages.h"
#include "space/region.h"
#include "space/room.h"
#include "store/commit.h"
#include "store/misuse.h"
#include "store/purge.h"
#include "store/residency.h"
#include "store/retire.h"
#include "store/watch.h"

namespace folio {

namespace {

// *why, where it has room that cannot be used: it is not committed.
unsigned take_from_folio(Descriptor& d, unsigned folio, Fullness peeked, void** objects, unsigned want, bool* zero,
                         Commit* why) {
  Word& word = d.occupancy(folio);
  const uint64_t valid = d.valid(folio);
  const uint64_t now = word.load(order::relaxed);  // relaxed: a guess, the fetch_or decides
  const uint64_t free = fullness_of(now, valid) == peeked ? valid & ~now : 0;
  if (free == 0) {
    lower_folio(d, folio, peeked);
    return 0;
  }
  // What a purge has left of it first; of objects of a page and more, that was looked for before.
  const bool purged = now != 0 && was_purged(d) && !has_pages_of_its_own(d.info());
  uint64_t there = purged ? resident_objects(d, folio, free, want) : 0;
  // At a limit, only what is there.
  const bool tight = !has_room(want * size_t{d.info().size} + os::page_bytes());
  if (tight) there = resident_objects(d, folio, free, want);
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
  for (uint64_t rest = mine; rest != 0; rest &= rest - 1) {
    objects[count++] = object_at(d, folio * kFolioObjects + lowest_bit(rest));
  }
  return count;
}

// *why, where what is left of that fullness cannot be used.
unsigned take_from_chunk(Descriptor& d, Fullness fullness, void** objects, unsigned want, bool* zero, Commit* why) {
  unsigned got = 0;
  for (int folio = 0; got < want && *why == Commit::kDone;) {
    // On from there: those before were taken, or lowered, or are raised again for who comes next.
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

// Lowers the dirty hint of a chunk in which nothing dirty was found, unless there is something by now.
void repair_dirty(Descriptor& d) {
  lower_chunk(d, kDirty);
  if (any_dirty(d)) raise_chunk(d, kDirty);
}

// Takes free objects of a page and more, all of whose pages are there.
unsigned take_resident_of(Descriptor& d, void** objects, unsigned want) {
  const ChunkPages chunk(d);
  unsigned got = 0;
  for (unsigned folio = 0; folio < d.info().folios && got < want; ++folio) {
    const unsigned first = folio * kFolioObjects, last = chunk.info().objects;
    const unsigned end = first + kFolioObjects < last ? first + kFolioObjects : last;
    uint64_t dirty = 0;
    visit_words_of(chunk.of({first, end}), [&](unsigned w, uint64_t mask) {
      dirty |= d.dirty(w).load(order::relaxed) & mask;  // relaxed: a guess, the fetch_or decides
    });
    if (dirty == 0) continue;
    const uint64_t free = d.valid(folio) & ~d.occupancy(folio).load(order::relaxed);  // relaxed: as above
    const uint64_t choice = lowest_bits(resident_objects(d, folio, free, want - got), want - got);
    if (choice == 0) continue;
    const uint64_t mine = choice & ~set_bits(d, folio, choice);
    if (mine != 0) note_taken(d, folio, mine);
    for (uint64_t rest = mine; rest != 0; rest &= rest - 1) {
      objects[got++] = object_at(d, first + lowest_bit(rest));
    }
  }
  return got;
}

// Objects of a page and more: those whose pages are there, before any that would have to be touched anew. Whichever
// they are, their pages go one by one, so the order by fullness would gain nothing. The folios' own hints may be stale
// then. (Without it super server takes 1.36 (1.20 to 1.66) of the memory.)
unsigned take_resident(HintBlock* blocks, void** objects, unsigned want) {
  constexpr unsigned kInVainMost = 4;  // what is dirty may be parts of objects only
  unsigned got = 0, in_vain = 0;
  for (HintBlock* block = blocks; block != nullptr; block = block->next) {
    for (unsigned slot = 0; slot < kWindowChunks;) {
      Descriptor* const d = find_chunk(*block, kDirty, slot);
      if (d == nullptr) break;
      const unsigned here = take_resident_of(*d, objects + got, want - got);
      got += here;
      if (got == want) return got;
      if (here == 0) repair_dirty(*d);
      if (here == 0 && ++in_vain == kInVainMost) return got;
      slot = window_slot(d->first) + 1;
    }
  }
  return got;
}

HintBlock* block_for(Store& store, BinId bin, Window* window) {
  Atomic<HintBlock*>& head = store.of(bin).blocks;
  // [blocks] acquire: sees the blocks' windows; pairs with the compare_exchange below.
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
    // [blocks] release: publishes window and next; pairs with the loads of `blocks`. Two threads may each add a block
    // for one window: every descriptor names its own, so both are used.
  } while (!head.compare_exchange(first, block, order::release));
  return block;
}

// Of a chunk of a bin with many of them, which are full, all is committed at once: what is not used of it is a quarter
// of what the bin has at most, and its mapping merges with its neighbours'. If it is of small objects, it also comes as
// a huge page when it is first touched: fewer faults, and fewer misses of the TLB. Not for objects of a page and more,
// whose pages go one by one.
void make_whole(Descriptor& d) {
  if (commit_chunk(d) != Commit::kDone) return;
  if (has_pages_of_its_own(d.info()) || options.huge_pages == kHugePagesNever || room_is_tight()) return;
  d.set_backing(Backing::kHugeWanted);
}

// All that a chunk needs, its header written. Null if there is no memory. What was made then serves the next one: the
// descriptor comes last. *renewed: all its objects are taken.
Descriptor* describe(Store& store, char* chunk, BinId bin, bool* renewed) {
  if (!chunk_table_open(chunk, kChunkBytes)) return nullptr;
  Window* window = window_make(chunk);
  HintBlock* block = window == nullptr ? nullptr : block_for(store, bin, window);
  if (block == nullptr) return nullptr;
  Descriptor* d = take_retired(*block, chunk);
  *renewed = d != nullptr && renew(*d);
  if (*renewed) return d;
  d = static_cast<Descriptor*>(metadata_alloc(Descriptor::bytes_for(bin)));
  if (d == nullptr) return nullptr;
  d->first = first_object(chunk, info_of(bin));
  d->block = block;
  d->bin = bin;
  d->seal = Descriptor::seal_for(d->first, bin);
  return d;
}

// A new chunk, published: from its hint on, everybody may take from it. A thread that stops before that loses the
// chunk's address space and nothing else.
bool open_chunk(Store& store, BinId bin) {
  constexpr unsigned kMany = 4;
  const bool many = store.of(bin).chunks.get() >= kMany;
  char* chunk = acquire_chunk();
  if (chunk == nullptr) return false;
  bool renewed = false;
  Descriptor* d = describe(store, chunk, bin, &renewed);
  if (d == nullptr) {
    return_chunk(chunk);
    return false;
  }
  d->set_backing(Backing::kSmall, forks.get());
  if (many) make_whole(*d);
  const unsigned slot = window_slot(chunk);
  // Relaxed: an index. Before the entry, so that nobody who stops here hides a chunk.
  d->block->opened[slot / 64].fetch_or(uint64_t{1} << slot % 64, order::relaxed);
  set_chunk(d->block->window, chunk, d, watch_wanted(store, bin) ? kCodeWatched + index(bin) : index(bin));
  store.of(bin).chunks.add(1);
  arch::store_barrier();  // before the program may pass on an address of it: CONCURRENCY.md, "Addresses"
  if (renewed) {
    PageChange change;
    release_objects(*d, {0, d->info().objects}, change);
    raise_chunk(*d, kPartlyFull);  // folios of the one before may have left theirs, and who sees one set raises no more
  }
  raise_new_chunk(*d);
  return true;
}

}  // namespace

unsigned take_objects_in_open_chunks(Store& store, BinId bin, void** objects, unsigned want, bool* zero,
                                     bool* refused) {
  // [blocks] acquire: pairs with block_for.
  HintBlock* const blocks = store.of(bin).blocks.load(order::acquire);
  unsigned got = has_pages_of_its_own(info_of(bin)) ? take_resident(blocks, objects, want) : 0;
  if (got != 0 && zero != nullptr) *zero = false;
  if (got != 0) return got;
  for (unsigned f = kNearlyFull; f <= kEmpty; ++f) {
    const auto fullness = static_cast<Fullness>(f);
    for (HintBlock* block = blocks; block != nullptr && got < want; block = block->next) {
      for (unsigned slot = 0; got < want;) {
        Descriptor* d = find_chunk(*block, fullness, slot);
        if (d == nullptr) break;
        Commit here = Commit::kDone;
        got += take_from_chunk(*d, fullness, objects + got, want - got, got == 0 ? zero : nullptr, &here);
        if (here == Commit::kDone) continue;
        if (here == Commit::kRefused && refused != nullptr) *refused = true;
        slot = window_slot(d->first) + 1;
      }
    }
  }
  return got;
}

namespace {

// Two of the bin's chunks, the next ones each time, get their hints right (see hints.h): two, so that the turn comes
// round while the bin grows by one chunk for each call.
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
  b.repair_slot.store(slot, order::relaxed);    // relaxed: as above
}

}  // namespace

unsigned take_objects(Store& store, BinId bin, void** objects, unsigned want, bool* zero) {
  for (;;) {
    bool refused = false;
    unsigned got = take_objects_in_open_chunks(store, bin, objects, want, zero, &refused);
    if (got != 0) return got;
    // Stale hints that this look corrected, and those repaired here, may show room.
    repair_next_chunks(store, bin);
    got = take_objects_in_open_chunks(store, bin, objects, want, zero, &refused);
    if (got != 0) return got;
    // Where what is there cannot be used, another chunk could not be either.
    if (refused || !open_chunk(store, bin)) return 0;
  }
}

namespace {

// What is the same for all that is given at once.
struct Giving {
  const BinInfo& info;
  const FreeRun page;
  PageChange change;
  const char* function;

  Giving(BinId bin, const char* of) : info(info_of(bin)), page(info), change{}, function(of) {}

  FOLIO_INLINE void give(Descriptor& d, unsigned folio, uint64_t mask) {
    const Cleared cleared = clear_bits(d, info, folio, mask);
    if (mask == cleared.bits && page.none(d, info, folio, mask, cleared.left)) return;
    give_more(d, folio, mask, cleared);
  }
  FOLIO_NOINLINE void give_more(Descriptor& d, unsigned folio, uint64_t mask, Cleared cleared) {
    note_given(d, folio, cleared.bits, cleared.left, change);
    for (uint64_t twice = mask & ~cleared.bits; twice != 0; twice &= twice - 1) {
      report_double_free(function, object_at(d, folio * kFolioObjects + lowest_bit(twice)), d.bin);
    }
  }
};

// The descriptor of an object's chunk if it is one of the bin's, else null.
FOLIO_INLINE Descriptor* descriptor_for(BinId bin, const void* object) {
  auto* const d = static_cast<Descriptor*>(descriptor_at(object));
  return d != nullptr && d->bin == bin && d->sealed() ? d : nullptr;
}

// The number of the object that starts at `address`, or info.objects, where none does.
FOLIO_INLINE unsigned start_number(const BinInfo& info, const char* first, const char* address) {
  const size_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(first);
  const uint64_t number = (offset * info.multiplier) >> kDivisionShift;
  return number * info.size == offset && number < info.objects ? static_cast<unsigned>(number) : info.objects;
}

FOLIO_COLD void report_not_given(BinId bin, const void* address, const char* function) {
  report_not_start(function, address, place_of(address), bin);
}

// Objects that are given, by folios: those of one go back by one instruction. A folio is found again by a table of what
// was seen last at its place: two that share one cost an instruction more, now and then. (A search through the folios
// found so far took 400 instructions an object where they were freed in random order; a hash table with chains 80.)
struct Gathered {
  static constexpr unsigned kMost = kMagazineObjects, kPlaces = 128;
  static_assert(kMost < 256);
  Word* word[kMost + 1];      // from 1 on; 0 is none's
  uint64_t mask[kMost + 1];   // objects of it
  uint16_t place[kMost + 1];  // of the word in its descriptor
  uint8_t number_at[kPlaces] = {};
  unsigned n = 0;

  Gathered() { word[0] = nullptr; }

  void forget() {
    __builtin_memset(number_at, 0, sizeof number_at);
    n = 0;
  }

  FOLIO_NOINLINE void give_to(Giving& giving) {
    for (unsigned i = 1; i <= n; ++i) {
      const unsigned its = place[i], folio = its - giving.info.words_before_occupancy;
      giving.give(Descriptor::of_word(word[i], its), folio, mask[i]);
    }
  }

  // The folio comes into the cache meanwhile.
  FOLIO_INLINE uint64_t& mask_of(Word* its, unsigned its_place) {
    uint8_t& at = number_at[reinterpret_cast<uintptr_t>(its) / sizeof(Word) % kPlaces];
    unsigned number = at;
    if (word[number] != its) {
      arch::prefetch(its);
      number = ++n;
      word[number] = its;
      mask[number] = 0;
      place[number] = static_cast<uint16_t>(its_place);
      at = static_cast<uint8_t>(number);
    }
    return mask[number];
  }
};

// Gathers objects of one chunk as long as they follow each other: they need no search for it. Returns the first one
// that is not: `at` itself where no object of the chunk starts there.
FOLIO_INLINE void* const* gather(Gathered& gathered, const BinInfo& info, Descriptor* d, void* const* at,
                                 void* const* end, const char* function) {
  const char* const first = d->first;
  unsigned folio = kFolioObjects * kPageWords * kFolioObjects;  // none
  uint64_t none = 0, *mask = &none, bits = 0;
  do {
    const auto* const object = static_cast<const char*>(*at);
    const unsigned number = start_number(info, first, object);
    if (__builtin_expect(number == info.objects, false)) break;
    if (number / kFolioObjects != folio) {
      *mask = bits;
      folio = number / kFolioObjects;
      mask = &gathered.mask_of(&d->occupancy(info, folio), info.words_before_occupancy + folio);
      bits = *mask;
    }
    const uint64_t bit = uint64_t{1} << number % kFolioObjects;
    if (__builtin_expect((bits & bit) != 0, false)) report_double_free(function, *at, d->bin);
    bits |= bit;
  } while (++at != end);
  *mask = bits;
  return at;
}

// The descriptors of the chunks seen last: in random order the next object is in another chunk, and to find its
// descriptor takes 35 instructions.
struct SeenChunks {
  static constexpr unsigned kPlaces = 8;
  const char* chunk[kPlaces] = {};
  Descriptor* descriptor[kPlaces] = {};

  FOLIO_INLINE Descriptor* descriptor_for(BinId bin, const char* object) {
    const char* const its = chunk_start(object);
    const size_t place = reinterpret_cast<uintptr_t>(object) / kChunkBytes % kPlaces;
    if (chunk[place] != its) {
      chunk[place] = its;
      descriptor[place] = folio::descriptor_for(bin, object);
    }
    return descriptor[place];
  }
};

}  // namespace

void give_objects(BinId bin, void* const* objects, unsigned count, const char* function) {
  const ObjectList list = {objects, count};
  give_lists(bin, &list, 1, function);
}

// So many folios that the next list, or the next two, fit in where a heap is small; the stack frame is 18 bytes for
// each. (As many as there are objects: 4.9 KiB of stack, on which a signal handler's 8 KiB run out.)
void give_lists(BinId bin, const ObjectList* lists, unsigned n, const char* function) {
  Giving giving(bin, function);
  const BinInfo& info = giving.info;
  Gathered gathered;
  SeenChunks seen;
  for (const ObjectList* list = lists; list != lists + n; ++list) {
    if (gathered.n + list->count > Gathered::kMost) {
      gathered.give_to(giving);
      gathered.forget();
    }
    for (void *const *at = list->objects, *const *const end = at + list->count; at != end;) {
      void* const* const before = at;
      Descriptor* const d = seen.descriptor_for(bin, static_cast<char*>(*at));
      if (__builtin_expect(d != nullptr, true)) at = gather(gathered, info, d, at, end, function);
      if (__builtin_expect(at == before, false)) report_not_given(bin, *at++, function);
    }
  }
  gathered.give_to(giving);
}

void give_object(BinId bin, void* object, const char* function) {
  const BinInfo& info = info_of(bin);
  Descriptor* const d = descriptor_for(bin, object);
  const unsigned number = d != nullptr ? start_number(info, d->first, static_cast<char*>(object)) : info.objects;
  if (number == info.objects) return report_not_given(bin, object, function);
  Giving(bin, function).give(*d, number / kFolioObjects, uint64_t{1} << number % kFolioObjects);
}

}  // namespace folio
