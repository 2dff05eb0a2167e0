// A field: 64 MiB of address space for large objects (large.h), in granules of 16 KiB, and what is known of each.
//
//   Field | occupancy[f] | resident[f] | aged[f] |  entry[g]          words of 64 granules; FieldEntry for each granule
//
//   occupancy   bit g: granule g is taken, by an object or for a moment by a purge. The truth.
//   resident    which granules may have resident pages; the others read as zero.
//   aged        resident granules that were free before the last large_age(). If nothing of the word was freed since
//               then (freed_at), all that are resident and free are, whatever the bits say.
//   committed   bit w: the granules of word w can be used; the others are address space only. Never cleared.
//   entry[g]    not 0: here starts a live object, or one that is parked (neither bit), or a chunk that was lent.
//               | live, lent, seen : 1 each | 0 : 5 | spare : 2 | cache lines from the granule : 6 | granules : 16 |
//               seen: a chosen object, whose free is recorded (core/seam.h, large_mark_seen).
//               spare: 4 KiB units at the end that nobody asked for. They are not usable, so that a program which
//               counts by usable size (redis by its limit) counts what it touches.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "base/bits.h"
#include "space/row_hints.h"
#include "sync/relaxed.h"

namespace folio {

struct Fields;  // fields.h
extern Fields process_fields;

inline constexpr unsigned kGranuleShift = 14;
inline constexpr size_t kGranuleBytes = size_t{1} << kGranuleShift;
inline constexpr size_t kFieldBytesMost = size_t{64} << 20;
inline constexpr size_t kLargeMost = size_t{8} << 20;
inline constexpr size_t kLineOffsetMost = size_t{63} * 64;

// An entry, and room beside it, so that four share a cache line: each malloc and free of a large object writes the
// object's. Price: a page of metadata for each 4 MiB in which an object started, in place of one for 16. (With sixteen
// a line most neighbours on it were other threads' objects: two threads that each replace 300 objects of up to 200 KB
// reach 1.21 (1.15-1.36) times the speed with four, 1.30 (1.28-1.37) with one, for four times the pages again.)
struct FieldEntry {
  Atomic<uint32_t> word;
  uint32_t unused[3];
};
inline constexpr size_t kEntryBytes = sizeof(FieldEntry);
inline constexpr unsigned kFieldBitmaps = 3;  // occupancy, resident, aged

// Header written once, before the field is published; words and entries changed by anybody, under the protocols of
// large.h.
struct Field {
  char* base;
  Atomic<Field*> next;       // in the order in which they were made; never removed
  uint32_t granules;         // a multiple of 64
  uint32_t seal;             // of the two; a field whose seal is broken was overwritten
  uint32_t number;           // its place in the index
  struct FieldBlock* block;  // large_index.h
  Fields* home;
  Atomic<uint64_t> committed;
  // Bit c, of the field's cluster c (large_huge.h): the kernel was asked for a huge page there; and it counts as
  // foreseen, until nothing of the cluster is resident.
  Atomic<uint32_t> advised, foreseen;
  // On lines of their own, since they are written often and every free reads the fields above.
  alignas(64) Atomic<uint64_t> dirty;  // hint: a bit for each word in which granules may be free and resident
  RowHints ready_rows;
  Hint<uint32_t> huge_from[32];  // of a cluster: what large_age() must reach before a huge page is asked for again
  Hint<uint32_t> freed_at[64];   // of a word: what large_age() counted to when something was last freed in it

  using Word = Atomic<uint64_t>;
  static size_t bytes_for(uint32_t granules) {
    return sizeof(Field) + size_t{granules} / 8 * kFieldBitmaps + size_t{granules} * kEntryBytes;
  }
  static uint32_t seal_for(const char* base, uint32_t granules) {
    return static_cast<uint32_t>((reinterpret_cast<uintptr_t>(base) >> kGranuleShift) * 0x9e3779b1u) ^ granules ^
           0x6669656cu;
  }
  bool sealed() const { return seal == seal_for(base, granules); }
  unsigned words() const { return granules / 64; }
  Word& occupancy(unsigned i) { return reinterpret_cast<Word*>(this + 1)[i]; }
  Word& resident(unsigned i) { return occupancy(words() + i); }
  Word& aged(unsigned i) { return occupancy(2 * words() + i); }
  Atomic<uint32_t>& entry(unsigned g) {
    return reinterpret_cast<FieldEntry*>(&occupancy(kFieldBitmaps * words()))[g].word;
  }
};
static_assert(sizeof(Field) % sizeof(Field::Word) == 0);
static_assert(4 * kEntryBytes == 64);  // a cache line

// An entry of a field, as drawn above.
inline constexpr uint32_t kEntryLive = uint32_t{1} << 31, kEntryLent = uint32_t{1} << 30;
inline constexpr uint32_t kEntrySeen = uint32_t{1} << 29;
inline constexpr unsigned kEntryLinesShift = 16, kEntrySpareShift = 22;
inline constexpr size_t kSpareUnit = 4096;
// For an object of `size` bytes from `offset` on. What it does not need is counted as if it started at the last line,
// so that large_good_size() holds wherever it starts.
inline uint32_t make_entry(unsigned granules, size_t offset, size_t size) {
  const size_t units = round_up(size + kLineOffsetMost, kSpareUnit) / kSpareUnit;
  const size_t has = (size_t{granules} << kGranuleShift) / kSpareUnit;
  const size_t spare = has <= units ? 0 : has - units < 3 ? has - units : 3;
  return kEntryLive | static_cast<uint32_t>(spare) << kEntrySpareShift |
         static_cast<uint32_t>(offset / 64) << kEntryLinesShift | granules;
}
inline unsigned granules_in(uint32_t entry) { return entry & 0xffff; }
inline bool is_live(uint32_t entry) { return (entry & kEntryLive) != 0; }
inline bool is_parked(uint32_t entry) { return entry != 0 && (entry & (kEntryLive | kEntryLent)) == 0; }
inline size_t offset_in(uint32_t entry) { return size_t{entry >> kEntryLinesShift & 63} * 64; }
inline size_t usable_in(uint32_t entry) {
  return (size_t{granules_in(entry)} << kGranuleShift) - size_t{entry >> kEntrySpareShift & 3} * kSpareUnit -
         offset_in(entry);
}

inline Field* next_field(Field& f) { return f.next.load(order::acquire); }  // [fields] acquire: pairs with publish

}  // namespace folio
