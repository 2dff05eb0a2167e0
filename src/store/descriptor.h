// The chunk descriptor: all that is known of one chunk of objects. It lies in the metadata region.
//
//   Descriptor | nearly[n] | partly[n] | not empty[n] | resident[1] | dirty[1] | aged[1] | occupancy[f] |
//
//   64-bit words       f = folios of the chunk       n = ceil(f / 64)       1: a bit for each page of 4 KiB
//
// A zero-filled descriptor is a valid, wholly free chunk with no page committed or resident, so opening a chunk writes
// only the header.
//
//   occupancy[i]   bit j: object 64 i + j is taken (by the program or a cache). The truth; everything else is a hint.
//   nearly, partly bit i: folio i may be nearly or partly full.
//   not empty      inverted: bit i clear: folio i may be empty.
//   resident       which pages may be resident; the others read as zero.
//   dirty          resident pages that no taken object touches (residency.h). Exact with nothing in flight.
//   aged           which dirty pages were dirty at the last tick.
//
// Who may touch it: the header is written once, before the chunk is published; except `committed` (commit.h), the
// backing, a hint, and `retired`, which the thread that retires the chunk writes. Anybody changes words, by single
// atomic instructions, under the protocols of bin.h, residency.h and purge.h.
//
// Invariants (check_bin). No bit outside the valid ones is set in occupancy. With nothing in flight:
//   - a folio that has room has its hint raised in its class, and so has its chunk;
//   - an object that is taken is committed, and its pages have their resident bits set;
//   - a resident page is dirty just when no object that touches it is taken.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "config/size_classes.h"
#include "os/os.h"
#include "space/chunk_table.h"
#include "sync/relaxed.h"

namespace folio {

struct HintBlock;

using Word = Atomic<uint64_t>;

// Which bits of a folio's occupancy word stand for objects.
inline uint64_t valid_in(const BinInfo& info, unsigned folio) {
  return folio + 1u == info.folios ? info.last_valid : ~uint64_t{0};
}

// What backs a chunk. kHugePurged becomes kHuge at the first take in its cluster; kDense by collapse.
enum class Backing : uint8_t {
  kSmall,
  kSmallPurged,  // small pages; some may have been purged
  kHugePurged,   // purged with all of its cluster, to be made huge again
  kHuge,         // came as a part of a huge page, and is one until its cluster is broken (space/chunks.h)
  kDense,        // small pages, nearly all in use at the last visit (collapse.h)
};

// Forks of this process and its ancestors, modulo kForksCounted. A chunk older than the last one may share pages; one
// that is older by a multiple of it is taken for new, and the copy of what it shares costs memory, no more.
inline constexpr uint8_t kForksCounted = 32;
extern Hint<uint8_t> forks;

struct Descriptor {
  char* first;       // the chunk's first object
  HintBlock* block;  // holds the chunk's own hints
  BinId bin;
  Atomic<uint8_t> backing_word;  // | forks before it was opened : 5 | backing : 3 |
  // How far the chunk is committed, in kPageBytesLeast from its start, and a busy bit (commit.cc).
  Atomic<uint16_t> committed;
  uint32_t seal;        // of first and bin; a descriptor whose seal is broken was overwritten
  Descriptor* retired;  // the next one of its list, while the chunk is retired (retire.h)

  static size_t bytes_for(BinId bin);
  static uint32_t seal_for(const char* first, BinId bin) {
    const uint64_t mixed = reinterpret_cast<uintptr_t>(first) * uint64_t{0x9E3779B97F4A7C15};
    return static_cast<uint32_t>(mixed >> 32) ^ (index(bin) << 24) ^ 0x666f6c69u;
  }

  char* chunk() const { return chunk_start(first); }

  uint8_t forks_before() const { return backing_word.load(order::relaxed) >> 3; }                  // relaxed: a hint
  Backing backing() const { return static_cast<Backing>(backing_word.load(order::relaxed) & 7); }  // relaxed: a hint
  void set_backing(Backing b, uint8_t forks_before) {
    // relaxed: a hint
    backing_word.store(static_cast<uint8_t>(forks_before << 3 | static_cast<unsigned>(b)), order::relaxed);
  }
  void set_backing(Backing b) { set_backing(b, forks_before()); }

  const BinInfo& info() const { return info_of(bin); }
  bool sealed() const { return seal == seal_for(first, bin); }

  Word* words() { return reinterpret_cast<Word*>(this + 1); }
  unsigned hint_words() const { return sizes::hint_words(info()); }

  Word& hint(unsigned fullness, unsigned word) { return words()[fullness * hint_words() + word]; }
  Word& resident(unsigned word) { return words()[info().words_before_occupancy - 3 * kPageWords + word]; }
  Word& dirty(unsigned word) { return words()[info().words_before_occupancy - 2 * kPageWords + word]; }
  Word& aged(unsigned word) { return words()[info().words_before_occupancy - kPageWords + word]; }
  Word& occupancy(unsigned folio) { return occupancy(info(), folio); }
  Word& occupancy(const BinInfo& info, unsigned folio) { return words()[info.words_before_occupancy + folio]; }

  // The descriptor whose words()[place] is *word.
  static Descriptor& of_word(Word* word, unsigned place) { return *(reinterpret_cast<Descriptor*>(word - place) - 1); }

  uint64_t valid(unsigned folio) const { return valid_in(info(), folio); }
  char* slot(unsigned object) const { return first + size_t{object} * info().size; }
};
static_assert(sizeof(Descriptor) % sizeof(Word) == 0);

inline size_t Descriptor::bytes_for(BinId bin) {
  const BinInfo& info = info_of(bin);
  return sizeof(Descriptor) + (size_t{info.words_before_occupancy} + info.folios) * sizeof(Word);
}

// Objects of 4 KiB and more: so few touch a page that pages come and go with single objects, not with folios.
inline bool has_pages_of_its_own(const BinInfo& info) { return info.size >= kPageBytesLeast; }

inline char* object_at(const Descriptor& d, unsigned object) { return d.slot(object); }

// The number of the slot that holds `address`, an address in the chunk. At least info.objects if that is before the
// first object or behind the last.
inline unsigned object_number(const BinInfo& info, const char* first, const void* address) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(first);
  if (offset >= kChunkBytes) return info.objects;
  return static_cast<unsigned>((offset * info.multiplier) >> kDivisionShift);
}
inline unsigned object_number(const Descriptor& d, const void* address) {
  return object_number(d.info(), d.first, address);
}

// Where the chunk's first object lies: behind the colour, whole pages by the chunk's number, aligned for the bin.
inline char* first_object(char* chunk, const BinInfo& info) {
  const size_t alignment = size_t{1} << info.natural_shift, page = os::page_bytes();
  const size_t number = reinterpret_cast<uintptr_t>(chunk) >> kChunkShift;
  return chunk + round_down(number % kColours * kPageBytesLeast, alignment > page ? alignment : page);
}

}  // namespace folio
