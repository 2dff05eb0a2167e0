// Arithmetic on words and sizes: pure, constexpr, no state. Called by every layer.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace folio {

// Written out: without -mpopcnt the builtin is a call into libgcc that looks eight bytes up in a table.
constexpr unsigned popcount(uint64_t x) {
  x -= (x >> 1) & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + ((x >> 2) & 0x3333333333333333u);
  x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  return static_cast<unsigned>((x * 0x0101010101010101u) >> 56);
}

// Index of the lowest or highest set bit; x is not 0.
constexpr unsigned lowest_bit(uint64_t x) { return static_cast<unsigned>(__builtin_ctzll(x)); }
constexpr unsigned highest_bit(uint64_t x) { return 63u - static_cast<unsigned>(__builtin_clzll(x)); }

constexpr int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }

// n below 64.
constexpr uint64_t rotated_right(uint64_t word, unsigned n) { return n == 0 ? word : word >> n | word << (64 - n); }

// The `n` lowest set bits of x (all of them if it has no more).
constexpr uint64_t lowest_bits(uint64_t x, unsigned n) {
  if (n >= 64 || x == 0) return x;
  const uint64_t row = ((uint64_t{1} << n) - 1) << lowest_bit(x);  // often they are in a row
  if (lowest_bit(x) + n <= 64 && (x & row) == row) return row;
  uint64_t rest = x;
  for (unsigned i = 0; i < n && rest != 0; ++i) rest &= rest - 1;
  return x ^ rest;
}

// The n lowest bits set, n from 0 to 64.
constexpr uint64_t low_mask(unsigned n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// The bits, of two words in a row, from which on `count` (at most 64) bits are set.
constexpr uint64_t starts_of_runs(uint64_t low, uint64_t high, unsigned count) {
  // Mostly there is none, which the last bit of each tells sooner than the second.
  if (count > 1 && (low & (low >> (count - 1) | high << (65 - count))) == 0) return 0;
  for (unsigned have = 1; have < count;) {
    const unsigned more = have < count - have ? have : count - have;
    low &= low >> more | high << (64 - more);
    high &= high >> more;
    have += more;
  }
  return low;
}

// Whether the set bits, one at least, are in a row.
constexpr bool in_one_run(uint64_t word) { return (word & (word + (word & -word))) == 0; }

// Whether there is a run of `count` set bits.
constexpr bool has_run(uint64_t word, unsigned count) {
  for (unsigned have = 1; have < count && word != 0;) {
    const unsigned more = have < count - have ? have : count - have;
    word &= word >> more;
    have += more;
  }
  return word != 0;
}

// The bits of runs of at least `count`; a run at either end counts, since it may go on beyond.
constexpr uint64_t in_long_runs(uint64_t word, unsigned count) {
  if (count <= 1) return word;
  const unsigned most = count < 64 ? count : 64;
  uint64_t found = word;  // from there on `have` bits are set; those behind the last count as set
  unsigned have = 1;
  for (; have < most && found != 0;) {
    const unsigned more = have < most - have ? have : most - have;
    found &= found >> more | ~(~uint64_t{0} >> more);
    have += more;
  }
  for (unsigned wide = 1; wide < have;) {
    const unsigned more = wide < have - wide ? wide : have - wide;
    found |= found << more;
    wide += more;
  }
  return found | (word & ~(word + 1));
}

// Calls visit(word, mask, first bit) for the words of `count` bits from bit `from` of a row of words, in ascending
// order, until it returns false.
template <class Visit>
constexpr void visit_words(unsigned from, unsigned count, Visit&& visit) {
  while (count != 0) {
    const unsigned bit = from % 64, length = 64 - bit < count ? 64 - bit : count;
    if (!visit(from / 64, low_mask(length) << bit, from)) return;
    from += length;
    count -= length;
  }
}

// Calls visit(first bit, length, mask) for the runs of set bits in a word, in pieces of at most `most`.
template <class Visit>
constexpr void visit_runs(uint64_t word, unsigned most, Visit&& visit) {
  while (word != 0) {
    const unsigned at = lowest_bit(word);
    const uint64_t after = ~word >> at;
    const unsigned run = after == 0 ? 64 - at : lowest_bit(after), length = run < most ? run : most;
    const uint64_t mask = low_mask(length) << at;
    visit(at, length, mask);
    word &= ~mask;
  }
}

// `alignment` is a power of two.
constexpr size_t round_up(size_t x, size_t alignment) { return (x + alignment - 1) & ~(alignment - 1); }
constexpr size_t round_down(size_t x, size_t alignment) { return x & ~(alignment - 1); }
constexpr bool is_power_of_two(size_t x) { return x != 0 && (x & (x - 1)) == 0; }

// The least k with 2^k >= x, x at least 1.
constexpr unsigned log2_ceil(uint64_t x) { return x <= 1 ? 0 : highest_bit(x - 1) + 1; }

}  // namespace folio
