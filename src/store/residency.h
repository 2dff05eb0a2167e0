// Residency: which pages of a chunk are resident, and which of these are free. Pages have the system's size and are
// counted from the chunk's start; a page is free while no object that touches it, with however few bytes, is taken.
//
// The occupancy words say which pages are free. Two marks per page say what a purge can give back, and space/pages.h
// counts them:
//
//   resident   set when an object that touches the page is taken; cleared by a purge, which has claimed all of these
//   dirty      resident and free; set by the give of the page's last taken object, cleared by the take of its first
//
//     give: clear the object's bit; look whether the page is free; set the mark; look again, and clear it if not.
//     take: set the object's bit; clear the mark if it is seen set.
//
// As with hints (hints.h), each side writes one word and then reads the other's, sequentially consistent: one side sees
// the other, and with nothing in flight the marks are exact. A thread that stops for ever between its two steps leaves
// a page unmarked until an object on it is freed or PurgeWhich::kAll comes; or marked until a purge finds it taken.
//
// Pages become resident by a fault each, or several at once: by a touch ahead, or as a huge page. Those that come
// before an object on them is taken are dirty, as after a free.
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

// From objects to the pages that they touch, and back.
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
  // Pages that these objects touch and no other; {n, n} if there are none, n the first page from their start on.
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
  ~PageChange() {
    if ((resident | dirty) != 0) count();
  }
  void count() const;
};

// The caller has taken objects `mine` of a folio.
void note_taken(Descriptor& d, unsigned folio, uint64_t mine);
// Objects `given` of a folio were given back; `left` is the folio's word without them.
void note_given(Descriptor& d, unsigned folio, uint64_t given, uint64_t left, PageChange& change);

// At least so many objects touch each page in use but the last: floor(page size / object size).
inline unsigned objects_a_page(const BinInfo& info) {
  return static_cast<unsigned>((os::page_bytes() * info.multiplier) >> kDivisionShift);
}
// A quick test that a give leaves no page free, as too few free objects lie in a row. Reads the folio's word, and its
// neighbours' where pages reach from one folio into the next. (Without it half of all frees in random order took the
// exact test, 60 instructions each.)
struct FreeRun {
  unsigned least;  // with fewer free objects in a row no page is free, except the chunk's last one
  bool within;     // no folio crosses a page's edge
  bool nested;     // no page crosses a folio's edge, or folios divide pages: the words beside do not matter

  explicit FreeRun(const BinInfo& info) : least(objects_a_page(info)) {
    const size_t folio = size_t{info.size} * kFolioObjects, page = os::page_bytes();
    nested = (folio & (page - 1)) == 0 || (is_power_of_two(folio) && folio < page);
    if (nested && least > kFolioObjects) least = kFolioObjects;
    within = nested && least == kFolioObjects;
  }

  // True: giving objects `given` of a folio, whose word is `left` without them, frees no page.
  FOLIO_INLINE bool none(Descriptor& d, const BinInfo& info, unsigned folio, uint64_t given, uint64_t left) const {
    // A folio within a page, which is free only if all of it is. (The chunk's last page may have less of a folio.)
    if (within && left != 0 && folio + 1u != info.folios) return true;
    const bool one = (given & (given - 1)) == 0;
    if (one) {
      const unsigned its = lowest_bit(given);
      const uint64_t upwards = left >> its, downwards = left << (kFolioObjects - 1 - its);
      // Between two taken objects of the word.
      if (upwards != 0 && downwards != 0 &&
          lowest_bit(upwards) + (kFolioObjects - 1 - highest_bit(downwards)) - 1 < least) {
        return true;
      }
      if (shares_each_page(info, folio, its, left)) return true;
    }
    if (nested && !one) {
      return folio + 1u != info.folios && (within ? left != 0 : !has_run(~left, least));
    }
    // One object's run; or the two runs at the word's ends, if no other is long enough.
    if (!one && (left == 0 || has_run(~left, least))) return false;
    const unsigned at = one ? lowest_bit(given) : 0;
    const uint64_t below = one ? left & low_mask(at) : left, above = left >> at;
    const unsigned first = below == 0 ? 0 : highest_bit(below) + 1;
    const unsigned end = above == 0 ? kFolioObjects : at + lowest_bit(above);
    if (one) return is_short(end - first, d, info, folio, below == 0, above == 0);
    return is_short(end, d, info, folio, true, false) && is_short(kFolioObjects - first, d, info, folio, false, true);
  }

 private:
  // Whether a taken object of the folio lies on each page of a free one. (A free of one object after the other frees
  // long runs, but few pages: without this it took 180 instructions more.)
  FOLIO_INLINE static bool shares_each_page(const BinInfo& info, unsigned folio, unsigned its, uint64_t left) {
    const size_t size = info.size, first = (size_t{folio} * kFolioObjects + its) * size, last = first + size - 1;
    return size <= os::page_bytes() && shares_page(info, folio, first, left) &&
           (same_page(first, last) || shares_page(info, folio, last, left));
  }
  static bool same_page(size_t a, size_t b) { return ((a ^ b) & ~(os::page_bytes() - 1)) == 0; }
  // `at`: an offset from the first object, which lies at a page's start.
  FOLIO_INLINE static bool shares_page(const BinInfo& info, unsigned folio, size_t at, uint64_t left) {
    const size_t page = os::page_bytes(), start = at & ~(page - 1), before = size_t{folio} * kFolioObjects;
    const size_t lowest = (start * info.multiplier) >> kDivisionShift,
                 highest = ((start + page - 1) * info.multiplier) >> kDivisionShift;
    const size_t from = lowest > before ? lowest - before : 0;
    const size_t to = highest - before < kFolioObjects ? highest - before : kFolioObjects - 1;
    return (left >> from << (kFolioObjects - 1 - to + from)) != 0;
  }

  // Whether a run of `run` objects is too short, with those beyond the word's ends that it reaches.
  FOLIO_INLINE bool is_short(unsigned run, Descriptor& d, const BinInfo& info, unsigned folio, bool low,
                             bool high) const {
    if (high && folio + 1u == info.folios) return false;
    if (nested) return run < least;
    if (low && folio != 0) {
      // [page] seq_cst: a look, after the give; pairs with clear_bits of the neighbour's giver, who then looks here.
      // unseen: in the explorer's memory whatever follows a seq_cst change, as of the objects, comes after it
      const uint64_t word = d.occupancy(info, folio - 1).load(order::seq_cst);
      if (word == 0) return false;
      run += kFolioObjects - 1 - highest_bit(word);
    }
    if (high) {
      const uint64_t word = d.occupancy(info, folio + 1).load(order::seq_cst);  // [page] seq_cst, unseen: as for low
      if (word == 0) return false;
      run += lowest_bit(word);
    }
    return run < least;
  }
};

// Of the objects `some` of a folio, those whose pages are all resident. (Found by the absent pages: to look at each
// object took 3,400 instructions a folio, 5 % of a `git log`.)
uint64_t resident_objects(Descriptor& d, unsigned folio, uint64_t some);

bool nothing_there(Descriptor& d);  // no page of the chunk is resident: a guess, unless it is claimed
bool is_free(Descriptor& d, unsigned page);
bool any_dirty(Descriptor& d);  // the second look, after the chunk's dirty hint was lowered
// Marks those of the pages that are resident and free, and raises the chunk's dirty hint.
void mark_dirty(Descriptor& d, Pages pages, PageChange& change);
// Clears the mark of a page that was found not to be free; sets it again if the page has become free since.
void unmark_dirty(Descriptor& d, unsigned page, PageChange& change);

// The first touch of a chunk that was purged with all of its cluster: makes that huge again, unless others were first.
void touch_purged(Descriptor& d);
// All pages of the chunk have become resident at once: sets their bits, and marks those that are free.
void note_whole(Descriptor& d);
// Called before anything of the chunk is purged alone: notes it, and breaks the cluster.
void prepare_purge(Descriptor& d);
inline bool was_purged(const Descriptor& d) {  // or may have been
  const Backing backing = d.backing();
  return backing == Backing::kSmallPurged || backing == Backing::kHugePurged || backing == Backing::kDense;
}

}  // namespace folio
