// Bins: which sizes there are, and the constants that follow from each. Everything is computed at compile time from the
// lists below; tests/unit/config prove it over every size and every offset.
//
// Sizes, and why they are so:
//   8, then 16 to 128 by 16       every object of 16 bytes and more is 16-byte aligned
//   160 to 512                    steps of at most 25 %
//   576 to 32832                  odd multiples of 64 bytes: neighbours in a page-strided array fall into different
//                                 cache sets [SuperMalloc §4]; one bin just above each power of two, which programs
//                                 like to ask for; steps of at most 25 %
//   1024, 2048, ... 32768         for aligned requests only
// What is larger has no bin: space/large.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/bits.h"

namespace folio {

inline constexpr unsigned kChunkShift = 18;
inline constexpr size_t kChunkBytes = size_t{1} << kChunkShift;
// A cluster: the neighbouring chunks, of any bins, that one huge page covers (space/chunks.h).
inline constexpr unsigned kClusterShift = 21;
inline constexpr size_t kClusterBytes = size_t{1} << kClusterShift;
inline constexpr unsigned kClusterChunks = 1u << (kClusterShift - kChunkShift);
inline constexpr unsigned kFolioObjects = 64;
inline constexpr size_t kPageBytesLeast = 4096;  // the real page size is read at run time and is a multiple of this
inline constexpr unsigned kPageWords = kChunkBytes / kPageBytesLeast / 64;  // with a bit for each page of a chunk

// Colours: the first object of a chunk lies 0 or 1 page into it, by the chunk's number. If it always lay at the start,
// the first pages of all bins, which are the busiest of a small heap, would share a set in data TLBs of 64 entries, 16
// sets of 4. (Pointers through the first pages of 22 bins: 1.7 ns each with 16 colours, 2.6 without; no difference in
// AMD's TLBs, where all entries are one set.) It leaves 1.6 % of a chunk unused, before or behind its objects: with 4
// colours 4.7 %, which is resident in huge pages, 1.3 % of the memory of ten programs of 20 to 55 MiB.
inline constexpr unsigned kColours = 2;
inline constexpr size_t kColourMost = (kColours - 1) * kPageBytesLeast;

// A bin. 0 is "not Folio's": null, foreign addresses, and everything that never has an open fast path.
enum class BinId : uint8_t { kNone = 0 };
constexpr unsigned index(BinId bin) { return static_cast<unsigned>(bin); }
constexpr BinId bin_id(unsigned i) { return static_cast<BinId>(i); }

namespace sizes {

inline constexpr uint32_t kSmallAndMedium[] = {
    8,    16,   32,   48,   64,   80,   96,   112,   128,   160,   192,   224,   256,   320,   384,  448,
    512,  576,  704,  832,  960,  1088, 1216, 1344,  1472,  1728,  1856,  2112,  2368,  2752,  3008, 3392,
    3776, 4160, 4672, 5696, 6848, 8256, 9536, 11456, 13504, 16448, 20544, 24640, 28736, 32832,
};
inline constexpr uint32_t kAligned[] = {1024, 2048, 4096, 8192, 16384, 32768};

template <class T, unsigned n>
constexpr unsigned count(const T (&)[n]) {
  return n;
}

}  // namespace sizes

inline constexpr unsigned kAlignedShifts = 16;  // of 32 KiB and less
inline constexpr unsigned kFirstAligned = 1 + sizes::count(sizes::kSmallAndMedium);
// bins are 1 .. kBins - 1
inline constexpr unsigned kBins = kFirstAligned + sizes::count(sizes::kAligned);

// Codes of the chunk table besides the bins.
inline constexpr unsigned kCodeLarge = kBins;
inline constexpr unsigned kCodeHugeStart = kBins + 1;
inline constexpr unsigned kCodeHugeInside = kBins + 2;
inline constexpr unsigned kCodeGuarded = kBins + 3;  // insight/guards.h
// From here on, by bin: a chunk of that bin whose frees are watched (store/watch.h).
inline constexpr unsigned kCodeWatched = kBins + 4;
inline constexpr unsigned kCodes = kCodeWatched + kBins;
inline constexpr unsigned kCursorBytes = sizeof(void*);  // of a thread's cursor, of which there is one for each code

inline constexpr size_t kSmallTableMost = 1024;                                   // an entry of the table for each
inline constexpr size_t kMediumMost = sizes::kSmallAndMedium[kFirstAligned - 2];  // 32832; above it, large

// Division of an offset in a chunk by the object size: one multiplication, one shift. With x and d of at most 2^18,
// m = ceil(2^42 / d) has x * (m * d - 2^42) < 2^42, which makes the quotient exact [SuperMalloc §7].
inline constexpr unsigned kDivisionShift = 42;

struct BinInfo {
  uint32_t size;                    // bytes of a slot
  uint32_t objects;                 // in a chunk
  uint64_t multiplier;              // see kDivisionShift
  uint64_t last_valid;              // which bits of the chunk's last occupancy word stand for objects
  uint16_t folios;                  // in a chunk
  uint8_t natural_shift;            // objects are aligned to 2^this by their size alone; at most 15
  uint8_t magazine_most;            // the most objects a magazine holds
  uint8_t some;                     // taken from the folios at once for a thread that has room for fewer
  uint16_t words_before_occupancy;  // in a chunk's descriptor (store/descriptor.h)
};

// A magazine has room for kMagazineObjects. Those of objects above kManyLargest, and of threads whose mallocs and frees
// take turns (thread_budget.h), hold kMagazineUsual at most: those of one folio, which a take has whole.
inline constexpr unsigned kMagazineObjects = 126, kMagazineUsual = kFolioObjects;
inline constexpr uint32_t kManyLargest = 512;

// Of objects in one magazine: 6 of 32 KiB, 12 of 16. (With 66 KiB objects of 4 to 32 KiB, replaced at random, took 2.1
// times as long, as each fourth call was a slow one; what threads may cache is bounded by bytes, and did not change.)
inline constexpr uint32_t kMagazineBytesMost = 198 * 1024;
// For a thread whose budget leaves less room. (With as many as a magazine holds, objects of 1 to 32 KiB took 1.11 to
// 1.44 of the time where the budget is used up.)
inline constexpr uint32_t kSomeBytesMost = 66 * 1024;

namespace sizes {

constexpr unsigned hint_words(const BinInfo& info) { return (info.folios + 63u) / 64u; }

constexpr BinInfo make_info(uint32_t size) {
  BinInfo info{};
  info.size = size;
  info.objects = static_cast<uint32_t>((kChunkBytes - kColourMost) / size);
  info.multiplier = ((uint64_t{1} << kDivisionShift) + size - 1) / size;
  info.folios = static_cast<uint16_t>((info.objects + kFolioObjects - 1) / kFolioObjects);
  const unsigned last = info.objects % kFolioObjects;
  info.last_valid = last == 0 ? ~uint64_t{0} : low_mask(last);
  info.natural_shift = static_cast<uint8_t>(lowest_bit(size));
  const uint32_t fit = kMagazineBytesMost / size, most = size <= kManyLargest ? kMagazineObjects : kMagazineUsual;
  info.magazine_most = static_cast<uint8_t>(fit < most ? fit : most);
  const uint32_t some = kSomeBytesMost / size;
  info.some = static_cast<uint8_t>(some < kMagazineUsual ? some : kMagazineUsual);
  info.words_before_occupancy = static_cast<uint16_t>(3 * hint_words(info) + 3 * kPageWords);
  return info;
}

// The smallest bin whose objects have at least `size` bytes and are aligned to 2^shift by their size. kNone if there is
// none.
constexpr BinId smallest_aligned(const BinInfo* info, unsigned shift, size_t size) {
  unsigned best = 0;
  for (unsigned i = 1; i < kBins; ++i) {
    const bool fits = info[i].natural_shift >= shift && info[i].size >= size;
    if (fits && (best == 0 || info[i].size < info[best].size)) best = i;
  }
  return bin_id(best);
}

// Of the sizes that one bin serves, at most one is that of a bin of kAligned: up to that one `low`, above it `high`.
struct AlignedBins {
  BinId low, high;
};

struct Tables {
  BinInfo info[kCodes]{};                        // by chunk-table code: those that are no bin have size 0
  uint16_t small_cursor[kSmallTableMost + 1]{};  // by size: the bin's cursor, as an offset among a thread's cursors
  uint8_t medium_bin[kMediumMost / 64 + 1]{};    // by (size + 63) / 64
  AlignedBins aligned[kAlignedShifts][kFirstAligned]{};  // by the alignment's log2 and the size's bin; for aligned_bin
};

constexpr Tables make_tables() {
  Tables t;
  for (unsigned i = 0; i < count(kSmallAndMedium); ++i) t.info[1 + i] = make_info(kSmallAndMedium[i]);
  for (unsigned i = 0; i < count(kAligned); ++i) t.info[kFirstAligned + i] = make_info(kAligned[i]);
  unsigned bin = 1;
  for (size_t size = 0; size <= kSmallTableMost; ++size) {
    if (size > t.info[bin].size) ++bin;
    t.small_cursor[size] = static_cast<uint16_t>(bin * kCursorBytes);
  }
  bin = 1;
  for (size_t lines = 0; lines <= kMediumMost / 64; ++lines) {
    while (lines * 64 > t.info[bin].size) ++bin;
    t.medium_bin[lines] = static_cast<uint8_t>(bin);
  }
  for (unsigned shift = 0; shift < kAlignedShifts; ++shift) {
    for (bin = 1; bin < kFirstAligned; ++bin) {
      t.aligned[shift][bin] = {smallest_aligned(t.info, shift, t.info[bin - 1].size + 1),
                               smallest_aligned(t.info, shift, t.info[bin].size)};
    }
  }
  return t;
}

}  // namespace sizes

inline constexpr sizes::Tables kSizes = sizes::make_tables();
constexpr const BinInfo& info_of(BinId bin) { return kSizes.info[index(bin)]; }

// The bin that serves a size of at most kMediumMost.
constexpr BinId bin_of(size_t size) {
  return bin_id(size <= kSmallTableMost ? kSizes.small_cursor[size] / kCursorBytes
                                        : kSizes.medium_bin[(size + 63) / 64]);
}

// The smallest bin whose objects have at least `size` bytes and are aligned to `alignment` (a power of two) by their
// size. kNone if there is none.
constexpr BinId aligned_bin(size_t alignment, size_t size) {
  if (size > kMediumMost || alignment >= size_t{1} << kAlignedShifts) return BinId::kNone;
  const sizes::AlignedBins bins = kSizes.aligned[lowest_bit(alignment)][index(bin_of(size))];
  return size <= info_of(bins.low).size ? bins.low : bins.high;
}

static_assert(kCodes <= 128, "chunk-table codes must leave room");
static_assert(kSizes.info[1].size == 8 && kSizes.info[kBins - 1].size == 32768);

}  // namespace folio
