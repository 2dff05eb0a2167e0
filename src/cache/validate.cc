// Validates a magazine's addresses by vector arithmetic, and measures how scattered its objects lie.
#include "cache/validate.h"

#include "arch/arch.h"
#include "os/os.h"
#include "store/misuse.h"
#include "store/occupancy.h"

namespace folio {

constinit Hint<int> wide_vectors{0};

namespace {

// Tells the start of an object of a bin from other addresses in its chunks, in 32-bit arithmetic and without a
// descriptor. With size = odd * 2^shift, the product (offset from the first object) * (inverse of odd) is
//   number * 2^shift       if the offset is number * size;
//   larger than that of any object, or with one of its low bits (shift of them) set, for every other offset.
// [Granlund and Montgomery, Division by Invariant Integers using Multiplication, PLDI 1994, §9]
struct Divider {
  uint32_t inverse;  // of the size's odd part, modulo 2^32
  uint32_t colour;   // the bits of (address >> 9) that are the first object's offset in its chunk
  uint32_t low;      // bits that are 0 in an object's product
  uint32_t above;    // bits that are 0 there too, also after `slack` is added
  uint32_t slack;    // from what follows the last object to the power of two above
};

constexpr unsigned kColourShift = kChunkShift - lowest_bit(kPageBytesLeast);

constexpr Divider make_divider(const BinInfo& info) {
  const uint32_t odd = info.size >> info.natural_shift;
  uint32_t inverse = odd;  // right in its 3 lowest bits; each step doubles them
  for (int step = 0; step < 4; ++step) inverse *= 2 - odd * inverse;
  const uint32_t beyond = info.objects << info.natural_shift;
  const auto range = uint32_t{1} << (highest_bit(uint64_t{beyond} - 1) + 1);
  const size_t unit = size_t{1} << info.natural_shift;
  const auto colours = static_cast<uint32_t>((kColours - 1) * kPageBytesLeast & ~(unit - 1));
  return {inverse, colours, static_cast<uint32_t>(low_mask(info.natural_shift)), ~(range - 1), range - beyond};
}

struct Dividers {
  Divider of[kBins];
  constexpr Dividers() : of{} {
    for (unsigned i = 1; i < kBins; ++i) of[i] = make_divider(kSizes.info[i]);
  }
};
constexpr Dividers kDividers;

// Addresses of a bin in a magazine, to be checked by the divider and compared with the last but one.
struct Check {
  Divider divider;
  uint32_t colours, near;
  const Slot* at;
  unsigned count;
};

typedef uint32_t Narrow __attribute__((vector_size(16)));
typedef uint64_t NarrowPairs __attribute__((vector_size(16)));
typedef uint32_t Wide __attribute__((vector_size(32)));
typedef uint64_t WidePairs __attribute__((vector_size(32)));
// The even ones of both, in the order that takes one instruction. (By reference, as a vector that is returned has
// another ABI without AVX.)
FOLIO_INLINE void even(Narrow& to, const Narrow& a, const Narrow& b) { to = __builtin_shufflevector(a, b, 0, 2, 4, 6); }
FOLIO_INLINE void even(Wide& to, const Wide& a, const Wide& b) {
  to = __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14);
}

template <class Halves>
constexpr unsigned kStep = sizeof(Halves) / sizeof(uint32_t);  // addresses, whose low halves are one vector
template <class Halves>
constexpr unsigned kLeast = kStep<Halves> + 2;  // to be compared with the last but one

// Whether one of at least kLeast addresses may be wrong, by vectors of 32-bit halves. Duplicates by low halves only.
template <class Halves, class Pairs>
FOLIO_INLINE bool fails(const Check& check) {
  constexpr auto kInChunk = static_cast<uint32_t>(kChunkBytes - 1);
  constexpr unsigned kHere = kStep<Halves>;
  const Divider& divider = check.divider;
  const unsigned last = check.count - kHere;
  const Halves near = check.near - Halves{};
  Halves products{}, with_slack{}, far{}, same{};
  // The last step looks at some a second time. The first one compares with those behind it.
  for (unsigned i = 0, other = 2;; other = i - 2) {
    Halves first, second, other_first, other_second, low;
    __builtin_memcpy(&first, check.at + i, sizeof first);
    __builtin_memcpy(&second, check.at + i + kHere / 2, sizeof second);
    __builtin_memcpy(&other_first, check.at + other, sizeof other_first);
    __builtin_memcpy(&other_second, check.at + other + kHere / 2, sizeof other_second);
    same |= reinterpret_cast<Halves>(first == other_first) | reinterpret_cast<Halves>(second == other_second);
    far |= (first ^ near) | (second ^ near);
    even(low, first, second);
    const Halves product = ((low & kInChunk) - ((low >> kColourShift) & check.colours)) * divider.inverse;
    products |= product;
    with_slack |= product + divider.slack;
    if (i == last) break;
    i = i + kHere < last ? i + kHere : last;
  }
  // Of an address that is not Folio's the chunk table may have the entry of one 16 TiB away, where no magazine is.
  constexpr unsigned kFarShift = kTableBits - 32;
  const Halves bits = (products & (divider.low | divider.above)) | (with_slack & divider.above);
  // Of each pair of halves the lower one is the address's lower one.
  const Pairs wrong = reinterpret_cast<Pairs>(bits) | reinterpret_cast<Pairs>(same) << 32 |
                      reinterpret_cast<Pairs>(far) >> (32 + kFarShift);
  uint64_t any = 0;
  for (unsigned i = 0; i < kHere / 2; ++i) any |= wrong[i];
  return any != 0;
}
FOLIO_WIDE_VECTORS FOLIO_NOINLINE bool fails_wide(const Check& check) { return fails<Wide, WidePairs>(check); }

// To ask the processor takes 30 us in a virtual machine, which short commands are spared.
FOLIO_NOINLINE bool ask_wide(int calls) {
  wide_vectors.set(calls + 1 < kNarrow ? calls + 1 : arch::has_wide_vectors() ? kWide : kNarrow);
  return wide_vectors.get() == kWide;
}
FOLIO_INLINE bool has_wide() {
  const int known = wide_vectors.get();
  return __builtin_expect(known >= kNarrow, true) ? known == kWide : ask_wide(known);
}

// True if some may be wrong, or are too few to tell: then repair() checks whole addresses. Rejected: to find all
// duplicates each time, by a table of hashes, and wrong addresses by descriptors: it took 20 % of a producer/consumer
// pair's throughput. Other duplicates are found by holds_twice now and then, or when the magazine is drained.
bool fails_check(BinId bin, const Slot* at, unsigned count) {
  if (count < kLeast<Narrow>) return true;
  const Divider& divider = kDividers.of[index(bin)];
  const Check check{divider, divider.colour & ~static_cast<uint32_t>(os::page_bytes() - 1),
                    static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) >> 32), at, count};
  return has_wide() && count >= kLeast<Wide> ? fails_wide(check) : fails<Narrow, NarrowPairs>(check);
}

// Whether an object is there twice; misses about one in 25, if another with the same hash came in between.
bool holds_twice(const Slot* at, unsigned count) {
  constexpr unsigned kHashBits = 10;
  uint8_t place[1u << kHashBits] = {};  // of the last object with the hash, counted from 1
  bool twice = false;
  for (unsigned i = 0; i < count; ++i) {
    uint8_t& before = place[reinterpret_cast<uintptr_t>(at[i]) * 0x9E3779B97F4A7C15 >> (64 - kHashBits)];
    twice |= before != 0 && at[before - 1] == at[i];
    before = static_cast<uint8_t>(i + 1);
  }
  return twice;
}

// Reports what is wrong in a magazine, and moves the top object into its slot.
FOLIO_COLD void repair(BinId bin, Magazine* magazine, const char* function) {
  for (unsigned i = 0; i < magazine->bottom(); ++i) {
    if (magazine->slot(i) < magazine->top()) continue;
    void* const address = *magazine->slot(i);
    const Place place = place_of(address);
    bool twice = false;
    for (Slot* other = magazine->top(); other < magazine->slot(i); ++other) twice |= *other == address;
    if (place.base != address) {
      report_not_start(function, address, place, bin);
    } else if (twice) {
      report_double_free(function, address, bin);
    } else {
      continue;
    }
    *magazine->slot(i) = *magazine->top();
    magazine->park(magazine->top() + 1);
  }
}

}  // namespace

void validate(BinId bin, Magazine* magazine, bool thorough, const char* function) {
  const Slot* const top = magazine->top();
  const unsigned count = magazine->count();
  if (fails_check(bin, top, count) || (thorough && holds_twice(top, count))) repair(bin, magazine, function);
}

namespace {

constexpr uint32_t kOrderedMost = 512;
constexpr uintptr_t kFar = kPageBytesLeast;            // between neighbours in a magazine
constexpr uintptr_t kWideSpan = uintptr_t{128} << 10;  // from the lowest to the highest; see scattered()

constexpr uint64_t kPinnedMost = uint64_t{1} << 20;
constexpr unsigned kPairsLeast = 16;  // to judge a list by: nearly those of a full magazine
constexpr unsigned kLooksMost = 5;    // magazines: of 64 objects a page apart in order, what spans a MiB

// Compares some pairs of neighbours, by turns 3 and 4 slots apart so that groups of 2 to 6 objects show; 6 and 7 slots
// in a large magazine, which is as good as full by then. Takes 4 instructions an object.
struct Spread {
  unsigned far = 0, checked = 0;
  uintptr_t least = ~uintptr_t{0}, most = 0;

  void add(Magazine* magazine) {
    const Slot* const top = magazine->top();
    const unsigned count = magazine->count();
    const unsigned step = count > kMagazineUsual ? 6 : 3;
    for (unsigned i = 1; i < count; i += step + checked % 2, ++checked) {
      const auto before = reinterpret_cast<uintptr_t>(top[i - 1]), at = reinterpret_cast<uintptr_t>(top[i]);
      far += at - before + (kFar - 1) >= 2 * kFar - 1;
      widen(at);
    }
  }
  void widen(uintptr_t at) {
    least = at < least ? at : least;
    most = at > most ? at : most;
  }
  // By some objects of it only.
  void widen(Magazine* magazine) {
    const unsigned count = magazine->count();
    for (unsigned i = 0; i < count; i += kMagazineUsual / 4) widen(reinterpret_cast<uintptr_t>(magazine->top()[i]));
    widen(reinterpret_cast<uintptr_t>(magazine->top()[count - 1]));
  }
};

}  // namespace

// With 128 KiB a list of 10,000 objects of 16 bytes, freed at random, is then walked in 1.1 ns a node in place of 2.7
// with 256 (0.9 when fresh). Larson's servers, lifetimes and producers of 64 bytes are level, producers of random sizes
// at 0.95 (0.94 to 1.04) of their speed (5 to 7 pairs each).
// Rejected in place of kWideSpan:
//   - a least number of chunks of the bin: a list in a heap of less than 2 MiB still took 7 times a fresh one's time;
//   - no bound at all: servers of small heaps (Larson's, 2 and 16 threads) lost 3 to 4 %.
bool scattered(BinId bin, Magazine* magazine) {
  if (info_of(bin).size > kOrderedMost) return false;
  Spread spread;
  spread.add(magazine);
  return 2 * spread.far > spread.checked && spread.most - spread.least >= kWideSpan;
}

bool pins_pages(Magazine* list, unsigned objects) {
  Spread spread;
  // The next one too where the first is small, or is scattered within so little that the span does not show it; and
  // more where most pairs are far apart.
  const auto unclear = [&](unsigned looks) {
    const unsigned least = looks > 1 ? spread.checked / 2 : 0;
    return spread.checked < kPairsLeast || (spread.far > least && spread.most - spread.least <= kPinnedMost);
  };
  for (unsigned looks = 0; looks < kLooksMost && list != nullptr && (looks == 0 || unclear(looks)); ++looks) {
    // Beyond the first it is the span that matters. (With all pairs of up to five magazines this took 5 % of the
    // instructions of group cycles, now 3.)
    if (spread.checked < kPairsLeast) {
      spread.add(list);
    } else {
      spread.widen(list);
    }
    list = list->next();
  }
  return spread.most - spread.least > kPinnedMost &&
         uint64_t{spread.far} * objects * os::page_bytes() > kPinnedMost * spread.checked;
}

}  // namespace folio
