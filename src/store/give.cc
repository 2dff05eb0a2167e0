// Gathers the objects of a give by folio, and clears the bits of each folio at once.
//
//   give_objects, give_lists -> Gathered -> Giving::give -> clear_bits (occupancy), note_given (residency)
#include "store/give.h"

#include "arch/arch.h"
#include "config/size_classes.h"
#include "store/misuse.h"
#include "store/occupancy.h"
#include "store/residency.h"

namespace folio {

namespace {

// What all gives of one call share.
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

// What a give needs to know of a bin: a copy, as the compiler would read it again after each store.
struct Shape {
  uint64_t multiplier;
  size_t size;
  unsigned objects, words_before;
  explicit Shape(const BinInfo& info)
      : multiplier(info.multiplier),
        size(info.size),
        objects(info.objects),
        words_before(info.words_before_occupancy) {}
};

// Whether an object starts at `address`: the *number-th.
FOLIO_INLINE bool is_start(const Shape& shape, const Descriptor& d, const char* address, unsigned* number) {
  const auto offset = static_cast<size_t>(address - d.first);
  const uint64_t its = (offset * shape.multiplier) >> kDivisionShift;
  *number = static_cast<unsigned>(its);
  return its * shape.size == offset && its < shape.objects;
}

FOLIO_COLD void report_not_given(BinId bin, const void* address, const char* function) {
  report_not_start(function, address, place_of(address), bin);
}

// Objects to give, gathered by folio: one fetch_and each. `number_at` is a direct-mapped table of folios; one that
// another has displaced is entered anew, which costs a second fetch_and. (Rejected, by instructions an object in random
// order: a search through the folios so far, 400; a hash table with chains, 80.)
struct Gathered {
  static constexpr unsigned kMost = kMagazineObjects, kPlaces = 128;
  static_assert(kMost < 256);
  Word* word[kMost + 1];      // from 1 on; 0 stands for none
  uint64_t mask[kMost + 1];   // the folio's objects to give; 0 behind the last
  uint16_t place[kMost + 1];  // of the word in its descriptor
  uint8_t number_at[kPlaces];
  unsigned n;

  Gathered() {
    word[0] = nullptr;
    forget();
  }

  void forget() {
    __builtin_memset(mask, 0, sizeof mask);
    __builtin_memset(number_at, 0, sizeof number_at);
    n = 0;
  }

  FOLIO_NOINLINE void give_to(Giving& giving) {
    for (unsigned i = 1; i <= n; ++i) {
      const unsigned its = place[i], folio = its - giving.info.words_before_occupancy;
      giving.give(Descriptor::of_word(word[i], its), folio, mask[i]);
    }
  }

  // The mask of the folio with this word, which it prefetches for give_to; `count` is n, which a new one raises.
  // Without a branch on whether it is a new one, which depends on the order of frees.
  FOLIO_INLINE uint64_t& mask_of(Word* its, unsigned its_place, unsigned& count) {
    uint8_t& at = number_at[reinterpret_cast<uintptr_t>(its) / sizeof(Word) % kPlaces];
    const unsigned known = at, is_new = word[known] != its ? 1 : 0;
    count += is_new;
    const unsigned number = known ^ ((known ^ count) & (0 - is_new));
    at = static_cast<uint8_t>(number);
    word[number] = its;
    place[number] = static_cast<uint16_t>(its_place);
    arch::prefetch(its);
    return mask[number];
  }
};

// Gathers objects behind *at, which is the `number`-th of its folio, while they are of the same folio: they need no
// search. `start`: where the folio's objects begin. Returns the next one. (To go on in the same chunk, and not only in
// the same folio, saved 2 instructions an object, and took 1.04 of the time where frees are in random order: whether
// the next object is of the same chunk is not predictable.)
FOLIO_INLINE void* const* gather_run(uint64_t& mask, const Shape& shape, uint64_t valid, const char* start,
                                     unsigned number, void* const* at, void* const* end) {
  uint64_t free = valid & ~mask;
  ++at;
  // Neighbours, in rising or falling order: a comparison each. (Frees of 100,000 objects in order: 11 instructions an
  // object in place of 21, 0.93 of the time.)
  const char* next = start + number * shape.size;
  const auto size = static_cast<ptrdiff_t>(shape.size), step = at != end ? static_cast<char*>(*at) - next : 0;
  if (step == size || step == -size) {
    void* const* const first = at;
    void* const* const stop = first + least_of(end - first, step < 0 ? number : kFolioObjects - 1 - number);
    while (at != stop && *at == (next += step)) ++at;
    const auto n = static_cast<unsigned>(at - first);
    const uint64_t bits = step < 0 ? low_mask(n) << (number - n) : low_mask(n) << number << 1;
    if ((free & bits) != bits) at = first;  // one is there already
    if (at != first) free ^= bits;
  }
  for (; at != end; ++at) {
    const auto offset = static_cast<size_t>(static_cast<const char*>(*at) - start);
    if (offset >= kFolioObjects * shape.size) break;
    const uint64_t its = (offset * shape.multiplier) >> kDivisionShift, bit = uint64_t{1} << its;
    // One that is there already, too: the caller reports it.
    if (its * shape.size != offset || (free & bit) == 0) break;
    free ^= bit;
  }
  mask = valid & ~free;
  return at;
}

// A direct-mapped cache of descriptors: in random order each object is in another chunk than the one before, and to
// find a descriptor takes 35 instructions. (Heaps of 10 to 13 MiB, built and freed in random order by turns: 0.88 to
// 0.93 of the time with 64 places in place of 32; with 128, which take more stack, 0.91, and 0.93 at 24 MiB.)
struct SeenChunks {
  static constexpr unsigned kPlaces = 64;
  uint32_t chunk[kPlaces];  // the low half of its address / kChunkBytes, or of a chunk of another place
  Descriptor* descriptor[kPlaces];

  SeenChunks() {
    __builtin_memset(chunk, 0xff, sizeof chunk);
    chunk[kPlaces - 1] = 0;
  }

  FOLIO_INLINE Descriptor* descriptor_for(BinId bin, const char* object) {
    const auto its = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(object) / kChunkBytes);
    const size_t place = its % kPlaces;
    if (__builtin_expect(chunk[place] != its, false)) return find(bin, object, its, place);
    Descriptor* const d = descriptor[place];
    if (d == nullptr) __builtin_unreachable();  // saves a test
    return d;
  }

 private:
  FOLIO_NOINLINE Descriptor* find(BinId bin, const char* object, uint32_t its, size_t place) {
    Descriptor* const d = folio::descriptor_for(bin, object);
    if (d == nullptr) return nullptr;
    chunk[place] = its;
    descriptor[place] = d;
    return d;
  }
};

}  // namespace

void give_objects(BinId bin, void* const* objects, unsigned count, const char* function) {
  const ObjectList list = {objects, count};
  give_lists(bin, &list, 1, function);
}

// Gathered has room for kMagazineObjects folios, 18 bytes of stack each; in a small heap two or three lists share them.
// (Rejected: room for a folio per object, for which the frame took 4.9 KiB: a signal handler's 8 KiB ran out.)
//
// Where frees were in order, runs of objects are of one folio. Where they were not, a look for a run costs more than it
// saves, as its end cannot be predicted: of a trie freed depth first, whose runs have 2.3 objects, 0.6 branches an
// object were mispredicted. So short runs put the next look off.
void give_lists(BinId bin, const ObjectList* lists, unsigned n, const char* function) {
  constexpr ptrdiff_t kSingly = 16, kRunLeast = 4;
  Giving giving(bin, function);
  const Shape shape(giving.info);
  Gathered gathered;
  SeenChunks seen;
  unsigned folios = 0;
  // The mask that it was added to, and its number; null if it is not an object.
  const auto gather = [&](void* address, unsigned* number) __attribute__((always_inline))->uint64_t* {
    auto* const object = static_cast<char*>(address);
    Descriptor* const d = seen.descriptor_for(bin, object);
    if (__builtin_expect(d == nullptr || !is_start(shape, *d, object, number), false)) {
      report_not_given(bin, object, function);
      return nullptr;
    }
    const unsigned place = shape.words_before + *number / kFolioObjects;
    const uint64_t bit = uint64_t{1} << *number % kFolioObjects;
    uint64_t& mask = gathered.mask_of(d->words() + place, place, folios);
    if (__builtin_expect((mask & bit) != 0, false)) report_double_free(function, object, bin);
    mask |= bit;
    return &mask;
  };
  for (const ObjectList* list = lists; list != lists + n; ++list) {
    if (folios + list->count > Gathered::kMost) {
      gathered.n = folios;
      gathered.give_to(giving);
      gathered.forget();
      folios = 0;
    }
    for (void *const *at = list->objects, *const *const end = at + list->count; at != end;) {
      void* const* const first = at;
      unsigned number;
      uint64_t* const mask = gather(*at++, &number);
      if (mask == nullptr) continue;
      const char* const start = static_cast<char*>(*first) - number % kFolioObjects * shape.size;
      at = gather_run(*mask, shape, valid_in(giving.info, number / kFolioObjects), start, number % kFolioObjects, first,
                      end);
      if (at - first >= kRunLeast) continue;
      for (void* const* const stop = end - at < kSingly ? end : at + kSingly; at != stop; ++at) gather(*at, &number);
    }
  }
  gathered.n = folios;
  gathered.give_to(giving);
}

void give_object(BinId bin, void* object, const char* function) {
  Descriptor* const d = descriptor_for(bin, object);
  unsigned number;
  if (d == nullptr || !is_start(Shape(info_of(bin)), *d, static_cast<char*>(object), &number)) {
    return report_not_given(bin, object, function);
  }
  Giving(bin, function).give(*d, number / kFolioObjects, uint64_t{1} << number % kFolioObjects);
}

}  // namespace folio
