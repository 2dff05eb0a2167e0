// Row hints: for each word of a field, how long the longest run of granules may be that are free, with their pages
// there, and that begins in it, as far as kMost. Eight words' hints lie in one, so that a search compares them at once:
// of 256 objects of 256 KiB to 1 MiB, replaced at random, a malloc looked at 45 words for its run and at 20 for the
// field's longest one, which together took 1,540 instructions in place of 710.
//
// Each may promise too much, but never too little, by the rule of space/large_index.h: who makes a run raises, after
// that, the hints of the words in which it begins or goes on; who finds less lowers, and then looks again. All of it is
// [room], sequentially consistent.
#pragma once

#include <stdint.h>

#include "base/atomic.h"
#include "base/bits.h"

namespace folio {

class RowHints {
 public:
  static constexpr unsigned kWords = 64, kMost = 64;

  unsigned get(unsigned w) const { return static_cast<unsigned>(load(w / 8) >> w % 8 * 8 & 0xff); }

  // After the change below. Nothing if it is seen as high. `length` beyond kMost counts as kMost.
  void raise(unsigned w, unsigned length) {
    const unsigned to = length < kMost ? length : kMost;
    replace(w, [to](unsigned was) { return was < to ? to : was; });
  }
  // Before the caller's second look.
  void lower(unsigned w, unsigned length) {
    replace(w, [length](unsigned was) { return length < was ? length : was; });
  }

  // The first word from `w` on whose hint is at least `length` (1 to kMost), or kWords.
  unsigned next(unsigned w, unsigned length) const {
    uint64_t below = low_mask(w % 8 * 8);
    for (unsigned i = w / 8; i < kWords / 8; ++i, below = 0) {
      // The upper bit of each byte: whether it is no less.
      const uint64_t enough = ((load(i) | kUpper) - kOnes * length) & kUpper & ~below;
      if (enough != 0) return i * 8 + lowest_bit(enough) / 8;
    }
    return kWords;
  }

  // The highest hint.
  unsigned most() const {
    uint64_t best = load(0);
    for (unsigned i = 1; i < kWords / 8; ++i) best = higher(best, load(i));
    best = higher(best, best >> 32);
    best = higher(best, best >> 16);
    return static_cast<unsigned>(higher(best, best >> 8) & 0xff);
  }

 private:
  static constexpr uint64_t kOnes = 0x0101010101010101, kUpper = kOnes << 7;
  static_assert(kMost < 0x80);

  // Byte by byte.
  static uint64_t higher(uint64_t a, uint64_t b) {
    const uint64_t mask = ((((a | kUpper) - b) & kUpper) >> 7) * 0xff;
    return (a & mask) | (b & ~mask);
  }

  uint64_t load(unsigned i) const { return hints_[i].load(order::seq_cst); }  // [room] seq_cst: as drawn above

  template <class To>
  void replace(unsigned w, To&& to) {
    const unsigned shift = w % 8 * 8;
    uint64_t now = load(w / 8);
    for (;;) {
      const auto was = static_cast<unsigned>(now >> shift & 0xff);
      const uint64_t changed = now ^ (uint64_t{was ^ to(was)} << shift);
      // [room] seq_cst: as drawn above
      if (changed == now || hints_[w / 8].compare_exchange(now, changed, order::seq_cst)) return;
    }
  }

  Atomic<uint64_t> hints_[kWords / 8];
};

}  // namespace folio
