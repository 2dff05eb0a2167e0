#include "base/bits.h"

#include <bit>

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// Words with few, many and edge bits, then random ones.
std::vector<uint64_t> interesting_words() {
  std::vector<uint64_t> words = {0, ~uint64_t{0}, 0x5555555555555555u, 0xaaaaaaaaaaaaaaaau, 0x00ff00ff00ff00ffu};
  for (unsigned i = 0; i < 64; ++i) {
    words.push_back(uint64_t{1} << i);
    words.push_back(~(uint64_t{1} << i));
    words.push_back((uint64_t{1} << i) - 1);
    words.push_back(~((uint64_t{1} << i) - 1));
  }
  std::mt19937_64 random(1);
  for (unsigned i = 0; i < rounds(10000); ++i) words.push_back(random() & (i % 2 == 0 ? ~uint64_t{0} : random()));
  return words;
}

TEST(Bits, PopcountCounts) {
  for (const uint64_t word : interesting_words()) {
    EXPECT_EQ(popcount(word), static_cast<unsigned>(std::popcount(word))) << std::hex << word;
  }
  static_assert(popcount(0) == 0 && popcount(~uint64_t{0}) == 64);
}

TEST(Bits, LowestAndHighestBit) {
  for (const uint64_t word : interesting_words()) {
    if (word == 0) continue;
    EXPECT_EQ(lowest_bit(word), static_cast<unsigned>(std::countr_zero(word))) << std::hex << word;
    EXPECT_EQ(highest_bit(word), 63u - static_cast<unsigned>(std::countl_zero(word))) << std::hex << word;
  }
}

TEST(Bits, RotatedRight) {
  for (const uint64_t word : interesting_words()) {
    for (const unsigned n : {0u, 1u, 31u, 63u}) EXPECT_EQ(rotated_right(word, n), std::rotr(word, static_cast<int>(n)));
  }
}

TEST(Bits, LowestBitsAreTheLowestAndAsManyAsAsked) {
  for (const uint64_t word : interesting_words()) {
    for (const unsigned n : {0u, 1u, 2u, 7u, 31u, 62u, 63u, 64u, 100u}) {
      const uint64_t low = lowest_bits(word, n);
      const unsigned want = std::min(n, popcount(word));
      ASSERT_EQ(low & ~word, 0u) << std::hex << word << " " << n;
      ASSERT_EQ(popcount(low), want) << std::hex << word << " " << n;
      // Every bit left out is above every bit chosen.
      const uint64_t rest = word & ~low;
      if (low == 0 || rest == 0) continue;
      ASSERT_GT(lowest_bit(rest), highest_bit(low)) << std::hex << word << " " << n;
    }
  }
}

TEST(Bits, StartsOfRunsAreThoseOfBitsInARow) {
  for (const uint64_t low : interesting_words()) {
    for (const uint64_t high : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{0x7fffffff}, ~uint64_t{0} >> 1}) {
      for (const unsigned count : {1u, 2u, 3u, 7u, 32u, 33u, 63u, 64u}) {
        uint64_t expected = 0;
        for (unsigned at = 0; at < 64; ++at) {
          unsigned run = 0;
          while (run < count && ((at + run < 64 ? low >> (at + run) : high >> (at + run - 64)) & 1) != 0) ++run;
          if (run == count) expected |= uint64_t{1} << at;
        }
        ASSERT_EQ(starts_of_runs(low, high, count), expected) << std::hex << low << " " << high << " " << count;
      }
    }
  }
}

TEST(Bits, LongRuns) {
  std::vector<uint64_t> words = interesting_words();
  std::mt19937_64 random(1);
  for (unsigned i = 0; i < 2000; ++i) words.push_back(random() | random() | (i % 2 == 0 ? random() : 0));
  for (const uint64_t word : words) {
    for (const unsigned count : {0u, 1u, 2u, 3u, 5u, 8u, 13u, 32u, 63u, 64u, 512u}) {
      uint64_t expected = 0;
      visit_runs(word, 64, [&](unsigned at, unsigned length, uint64_t mask) {
        if (length >= count || at == 0 || at + length == 64) expected |= mask;
      });
      ASSERT_EQ(in_long_runs(word, count), expected) << std::hex << word << " " << count;
      unsigned longest = 0;
      visit_runs(word, 64, [&](unsigned, unsigned length, uint64_t) { longest = std::max(longest, length); });
      if (count >= 1 && count <= 64) ASSERT_EQ(has_run(word, count), longest >= count) << std::hex << word << count;
    }
  }
}

TEST(Bits, RunsOfSetBitsInPieces) {
  for (const uint64_t word : interesting_words()) {
    for (const unsigned most : {1u, 5u, 64u}) {
      uint64_t seen = 0;
      visit_runs(word, most, [&](unsigned at, unsigned length, uint64_t mask) {
        EXPECT_EQ(mask, low_mask(length) << at);
        EXPECT_LE(length, most);
        EXPECT_EQ(seen & mask, 0u);
        EXPECT_TRUE(length == most || at + length == 64 || (word >> (at + length) & 1) == 0);
        seen |= mask;
      });
      EXPECT_EQ(seen, word);
    }
  }
}

TEST(Bits, LowMask) {
  EXPECT_EQ(low_mask(0), 0u);
  EXPECT_EQ(low_mask(1), 1u);
  EXPECT_EQ(low_mask(63), ~uint64_t{0} >> 1);
  EXPECT_EQ(low_mask(64), ~uint64_t{0});
  for (unsigned n = 0; n <= 64; ++n) EXPECT_EQ(popcount(low_mask(n)), n);
}

TEST(Bits, Rounding) {
  for (unsigned shift = 0; shift < 40; ++shift) {
    const size_t alignment = size_t{1} << shift;
    for (const size_t x :
         {size_t{0}, size_t{1}, alignment - 1, alignment, alignment + 1, 3 * alignment - 1, 5 * alignment}) {
      const size_t up = round_up(x, alignment), down = round_down(x, alignment);
      EXPECT_EQ(up % alignment, 0u);
      EXPECT_EQ(down % alignment, 0u);
      EXPECT_LE(down, x);
      EXPECT_LT(x - down, alignment);
      EXPECT_GE(up, x);
      EXPECT_LT(up - x, alignment);
    }
  }
}

TEST(Bits, PowersOfTwo) {
  EXPECT_FALSE(is_power_of_two(0));
  for (unsigned shift = 0; shift < 64; ++shift) {
    const size_t x = size_t{1} << shift;
    EXPECT_TRUE(is_power_of_two(x));
    EXPECT_EQ(is_power_of_two(x - 1), x == 2);
    EXPECT_EQ(is_power_of_two(x + 1), x == 1);
  }
}

TEST(Bits, Log2CeilIsTheLeastShiftThatReaches) {
  EXPECT_EQ(log2_ceil(0), 0u);
  EXPECT_EQ(log2_ceil(1), 0u);
  for (unsigned shift = 1; shift < 64; ++shift) {
    const uint64_t x = uint64_t{1} << shift;
    EXPECT_EQ(log2_ceil(x), shift);
    EXPECT_EQ(log2_ceil(x - 1), x == 2 ? 0 : shift);
    EXPECT_EQ(log2_ceil(x + 1), shift + 1);
  }
}

}  // namespace
