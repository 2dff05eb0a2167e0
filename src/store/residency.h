// Residency: which pages of a chunk are there, and which of these are free. Pages are counted from the chunk's start,
// in the system's size; a page is free while no object that touches it, with however few bytes, is taken.
//
// The occupancy words say which pages are free. Two marks say what a purge can give back, and the sums in
// space/pages.h count them:
//
//   resident   set when an object that touches the page is taken; cleared by a purge, which holds all of these
//   dirty      resident and free; set by who gives the last object of the page back, cleared by who takes the first
//
//     give: clear the object's bit; look whether the page is free; set the mark; look again, and clear it if not.
//     take: set the object's bit; clear the mark if it is seen set.
//
// As with hints (hints.h), each side writes one word and then reads the other's, sequentially consistent: so one of
// them sees the other, and with nothing in flight the marks are exact. A thread that stops between its two steps leaves
// a page unmarked until an object of it is freed again or everything is purged, or marked until a purge finds it taken.
//
// Pages come by faults, one for each page, or several at once: by a touch ahead, or as a huge page. What comes so
// before it is taken is dirty, as after a free.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/bits.h"
#include "os/os.h"
#include "store/descriptor.h"

namespace folio {

// Ranges [first, end) of a chunk's pages, and of its objects.
struct Pages {
  unsigned first, end;
  unsigned count() const { return end > first ? end - first : 0; }
};
struct Objects {
  unsigned first, end;
};

// Calls visit(word's number, mask) for the words of a range.
template <class Range, class Visit>
void visit_words_of(Range range, Visit&& visit) {
  visit_words(range.first, range.end > range.first ? range.end - range.first : 0,
              [&](unsigned w, uint64_t mask, unsigned) {
                visit(w, mask);
                return true;
              });
}

// Which pages objects touch, and the other way round.
class ChunkPages {
 public:
  explicit ChunkPages(const Descriptor& d)
      : info_(d.info()), first_(static_cast<size_t>(d.first - d.chunk())), shift_(lowest_bit(os::page_bytes())) {}

  const BinInfo& info() const { return info_; }
  unsigned shift() const { return shift_; }
  unsigned count() const { return static_cast<unsigned>(kChunkBytes >> shift_); }

  Pages of(Objects objects) const {
    if (objects.first == objects.end) return {0, 0};
    return {static_cast<unsigned>((first_ + size_t{objects.first} * info_.size) >> shift_),
            static_cast<unsigned>((first_ + size_t{objects.end} * info_.size - 1) >> shift_) + 1};
  }
  Pages of(unsigned object) const { return of({object, object + 1}); }
  // Pages that these objects touch and no other: {n, n} where there are none, n the one after the first they touch.
  Pages inside(Objects objects) const {
    const size_t from = first_ + size_t{objects.first} * info_.size, to = first_ + size_t{objects.end} * info_.size;
    const auto begin = static_cast<unsigned>((from + (size_t{1} << shift_) - 1) >> shift_);
    const auto end =
        static_cast<unsigned>((objects.end == info_.objects ? to + (size_t{1} << shift_) - 1 : to) >> shift_);
    return {begin, end > begin ? end : begin};
  }
  Pages in_use() const { return of({0, info_.objects}); }

  Objects on(Pages pages) const {
    const size_t from = size_t{pages.first} << shift_, to = size_t{pages.end} << shift_;
    if (to <= first_) return {0, 0};
    const unsigned begin = from <= first_ ? 0 : number(from - first_), end = number(to - 1 - first_) + 1;
    return {begin < info_.objects ? begin : info_.objects, end < info_.objects ? end : info_.objects};
  }

 private:
  unsigned number(size_t offset) const { return static_cast<unsigned>((offset * info_.multiplier) >> kDivisionShift); }

  const BinInfo& info_;
  size_t first_;
  unsigned shift_;
};

// Changes of the resident and dirty counts, in pages; the destructor adds them to page_counts.
struct PageChange {
  int resident = 0, dirty = 0;
  ~PageChange();
};

// The caller has taken objects `mine` of a folio.
void note_taken(Descriptor& d, unsigned folio, uint64_t mine);
// Objects `given` of a folio were given back; `left` is the folio's word without them.
void note_given(Descriptor& d, unsigned folio, uint64_t given, uint64_t left, PageChange& change);

// No page is touched by fewer objects than this, but for the chunk's last one.
inline unsigned objects_a_page(const BinInfo& info) {
  return static_cast<unsigned>((os::page_bytes() * info.multiplier) >> kDivisionShift);
}
// A quick test that frees leave no page free: too few objects in a row are free for a page to lie among them. Reads the
// folio's word, and its neighbours' where pages reach from one folio into the next. (Without the test half of all frees
// in random order took the exact one, 60 instructions each.)
struct FreeRun {
  unsigned least;  // free objects in a row, without which no page is free but the chunk's last one
  bool nested;     // pages in folios, or folios in pages: what is beyond a word's ends does not matter

  explicit FreeRun(const BinInfo& info) : least(objects_a_page(info)) {
    const size_t folio = size_t{info.size} * kFolioObjects, page = os::page_bytes();
    nested = (folio & (page - 1)) == 0 || (is_power_of_two(folio) && folio < page);
    if (nested && least > kFolioObjects) least = kFolioObjects;
  }

  // Of objects `given` of a folio, whose word is `left` without them.
  FOLIO_INLINE bool none(Descriptor& d, const BinInfo& info, unsigned folio, uint64_t given, uint64_t left) const {
    const bool one = (given & (given - 1)) == 0;
    if (one) {
      const unsigned its = lowest_bit(given);
      const uint64_t upwards = left >> its, downwards = left << (kFolioObjects - 1 - its);
      // Between two that are taken: how far these are from each other.
      if (upwards != 0 && downwards != 0) {
        return lowest_bit(upwards) + (kFolioObjects - 1 - highest_bit(downwards)) - 1 < least;
      }
    }
    if (nested && !one) {
      return folio + 1u != info.folios && (least == kFolioObjects ? left != 0 : !has_run(~left, least));
    }
    // The run that one object is in; or, of several, those at either end, and no other may be long enough.
    if (!one && (left == 0 || has_run(~left, least))) return false;
    const unsigned at = one ? lowest_bit(given) : 0;
    const uint64_t below = one ? left & low_mask(at) : left, above = left >> at;
    const unsigned first = below == 0 ? 0 : highest_bit(below) + 1;
    const unsigned end = above == 0 ? kFolioObjects : at + lowest_bit(above);
    if (one) return is_short(end - first, d, info, folio, below == 0, above == 0);
    return is_short(end, d, info, folio, true, false) && is_short(kFolioObjects - first, d, info, folio, false, true);
  }

 private:
  // A run of so many, with what is free beyond the ends that it reaches.
  FOLIO_INLINE bool is_short(unsigned run, Descriptor& d, const BinInfo& info, unsigned folio, bool low,
                             bool high) const {
    if (high && folio + 1u == info.folios) return false;
    if (nested) return run < least;
    if (low && folio != 0) {
      // [page] seq_cst: a look, after the objects were given; pairs with who gives the neighbour, and looks here.
      // unseen: in the explorer's memory whatever follows a seq_cst change, as of the objects, comes after it
      const uint64_t word = d.occupancy(info, folio - 1).load(order::seq_cst);
      if (word == 0) return false;
      run += kFolioObjects - 1 - highest_bit(word);
    }
    if (high) {
      const uint64_t word = d.occupancy(info, folio + 1).load(order::seq_cst);  // [page] seq_cst, unseen: as above
      if (word == 0) return false;
      run += lowest_bit(word);
    }
    return run < least;
  }
};

// Whether none of the pages of an object is there: it reads as zero.
bool is_untouched(Descriptor& d, unsigned object);
// Of the objects `some` of a folio, those whose pages are all resident. (By the pages that are not: looking at each
// object took 3,400 instructions for a folio, 5 % of a `git log`.)
uint64_t resident_objects(Descriptor& d, unsigned folio, uint64_t some);

bool is_free(Descriptor& d, unsigned page);
bool any_dirty(Descriptor& d);  // after the chunk's dirty hint was lowered
// Marks those of the pages that are resident and free, and raises the chunk's hint.
void mark_dirty(Descriptor& d, Pages pages, PageChange& change);
// Takes the dirty mark from a page that was found not to be free; sets it again if the page has become free since.
void unmark_dirty(Descriptor& d, unsigned page, PageChange& change);

// Makes a committed chunk a huge page: advises the kernel, and touches it. It stays one until a part of it is purged.
// The advice is taken back when the bin makes its next huge page, or by that purge: with it each such chunk would keep
// a mapping of its own, and khugepaged would bring back what is purged.
void make_huge(Descriptor& d);
// All pages of a chunk have become resident at once: sets their bits, and marks those that are free.
void note_whole(Descriptor& d);
// Before anything of a chunk is purged.
void prepare_purge(Descriptor& d);
inline bool was_purged(const Descriptor& d) {  // or may have been
  const Backing backing = d.backing();
  return backing == Backing::kSmallPurged || backing == Backing::kHugePurged || backing == Backing::kDense;
}

}  // namespace folio
