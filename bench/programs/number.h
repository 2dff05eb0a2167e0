// Natural numbers of any length. Each is one block from malloc, and every result is a new one: that is what makes a
// program on them a test of malloc.

#pragma once

#include <utility>

#include "bench.h"

namespace bench {

class Number {
 public:
  static inline uint64_t allocated = 0;  // blocks so far

  Number() = default;
  explicit Number(uint64_t value) : Number(Room{2}) {
    limbs()[0] = static_cast<uint32_t>(value);
    limbs()[1] = static_cast<uint32_t>(value >> 32);
    trim();
  }
  Number(Number &&other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Number &operator=(Number &&other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  Number(const Number &) = delete;
  Number &operator=(const Number &) = delete;
  ~Number() { free(block_); }

  Number copy() const {
    Number result{Room{length()}};
    memcpy(result.limbs(), limbs(), length() * sizeof(uint32_t));
    result.trim();
    return result;
  }

  bool is(uint32_t small) const { return small == 0 ? length() == 0 : length() == 1 && limbs()[0] == small; }

  static int compare(const Number &a, const Number &b) {
    if (a.length() != b.length()) return a.length() < b.length() ? -1 : 1;
    for (uint32_t i = a.length(); i-- > 0;) {
      if (a.limbs()[i] != b.limbs()[i]) return a.limbs()[i] < b.limbs()[i] ? -1 : 1;
    }
    return 0;
  }

  friend Number operator+(const Number &a, const Number &b) {
    if (a.length() < b.length()) return b + a;
    Number sum{Room{a.length() + 1}};
    uint64_t carry = 0;
    for (uint32_t i = 0; i < a.length(); ++i) {
      carry += uint64_t{a.limbs()[i]} + (i < b.length() ? b.limbs()[i] : 0);
      sum.limbs()[i] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    sum.limbs()[a.length()] = static_cast<uint32_t>(carry);
    sum.trim();
    return sum;
  }

  // For a >= b.
  friend Number operator-(const Number &a, const Number &b) {
    Number difference{Room{a.length()}};
    int64_t borrow = 0;
    for (uint32_t i = 0; i < a.length(); ++i) {
      borrow += int64_t{a.limbs()[i]} - (i < b.length() ? b.limbs()[i] : 0);
      difference.limbs()[i] = static_cast<uint32_t>(borrow);
      borrow >>= 32;
    }
    if (borrow != 0 || b.length() > a.length()) die("a difference below 0");
    difference.trim();
    return difference;
  }

  friend Number operator*(const Number &a, const Number &b) {
    Number product{Room{a.length() + b.length()}};
    uint32_t *to = product.limbs();
    memset(to, 0, (a.length() + b.length()) * sizeof(uint32_t));
    for (uint32_t i = 0; i < a.length(); ++i) {
      uint64_t carry = 0;
      for (uint32_t j = 0; j < b.length(); ++j) {
        carry += uint64_t{a.limbs()[i]} * b.limbs()[j] + to[i + j];
        to[i + j] = static_cast<uint32_t>(carry);
        carry >>= 32;
      }
      to[i + b.length()] = static_cast<uint32_t>(carry);
    }
    product.trim();
    return product;
  }

  Number divided(uint32_t divisor, uint32_t *remainder) const {
    Number quotient{Room{length()}};
    uint64_t rest = 0;
    for (uint32_t i = length(); i-- > 0;) {
      rest = rest << 32 | limbs()[i];
      quotient.limbs()[i] = static_cast<uint32_t>(rest / divisor);
      rest %= divisor;
    }
    quotient.trim();
    *remainder = static_cast<uint32_t>(rest);
    return quotient;
  }

  // Knuth, The Art of Computer Programming, volume 2, algorithm 4.3.1 D.
  Number divided(const Number &divisor, Number *remainder) const {
    const uint32_t n = divisor.length();
    if (n == 0) die("a division by 0");
    if (compare(*this, divisor) < 0) {
      *remainder = copy();
      return Number(0);
    }
    if (n == 1) {
      uint32_t small;
      Number quotient = divided(divisor.limbs()[0], &small);
      *remainder = Number(small);
      return quotient;
    }
    const int shift = __builtin_clz(divisor.limbs()[n - 1]);
    Number rest = shifted_left(shift), by = divisor.shifted_left(shift);
    const uint32_t m = length() - n;
    Number quotient{Room{m + 1}};
    for (uint32_t j = m + 1; j-- > 0;) quotient.limbs()[j] = divide_step(rest.limbs() + j, by.limbs(), n);
    quotient.trim();
    rest.set_length(n);
    for (uint32_t i = 0; i < n; ++i) {
      const uint64_t pair = uint64_t{i + 1 < n ? rest.limbs()[i + 1] : 0} << 32 | rest.limbs()[i];
      rest.limbs()[i] = static_cast<uint32_t>(pair >> shift);
    }
    rest.trim();
    *remainder = std::move(rest);
    return quotient;
  }

  friend Number operator/(const Number &a, const Number &b) {
    Number remainder;
    return a.divided(b, &remainder);
  }

  friend Number operator%(const Number &a, const Number &b) {
    Number remainder;
    a.divided(b, &remainder);
    return remainder;
  }

  // The largest number whose square is not above this one: Newton's method, from above.
  Number square_root() const {
    const Number two(2);
    Number root = copy();
    for (;;) {
      Number next = (root + *this / root) / two;
      if (compare(next, root) >= 0) return root;
      root = std::move(next);
    }
  }

  static Number gcd(Number a, Number b) {
    while (!b.is(0)) {
      Number rest = a % b;
      a = std::move(b);
      b = std::move(rest);
    }
    return a;
  }

 private:
  struct Room {
    uint32_t limbs;
  };

  // The block: the length, then the limbs, the lowest first.
  explicit Number(Room room) : block_(static_cast<uint32_t *>(must_malloc((room.limbs + 1) * sizeof(uint32_t)))) {
    ++allocated;
    block_[0] = room.limbs;
  }

  uint32_t length() const { return block_[0]; }
  void set_length(uint32_t length) { block_[0] = length; }
  uint32_t *limbs() { return block_ + 1; }
  const uint32_t *limbs() const { return block_ + 1; }

  void trim() {
    while (length() != 0 && limbs()[length() - 1] == 0) set_length(length() - 1);
  }

  // By less than 32 bits; with one more limb, which may be 0, for the division.
  Number shifted_left(int shift) const {
    Number result{Room{length() + 1}};
    uint64_t carry = 0;
    for (uint32_t i = 0; i < length(); ++i) {
      carry |= uint64_t{limbs()[i]} << shift;
      result.limbs()[i] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    result.limbs()[length()] = static_cast<uint32_t>(carry);
    return result;
  }

  // One digit of the quotient; `rest` has n + 1 limbs from here, of which what is subtracted is taken.
  static uint32_t divide_step(uint32_t *rest, const uint32_t *by, uint32_t n) {
    const uint64_t top = uint64_t{rest[n]} << 32 | rest[n - 1];
    uint64_t digit = top / by[n - 1], left = top % by[n - 1];
    while (digit >> 32 != 0 || digit * by[n - 2] > (left << 32 | rest[n - 2])) {
      --digit;
      left += by[n - 1];
      if (left >> 32 != 0) break;
    }
    int64_t borrow = 0;
    uint64_t carry = 0;
    for (uint32_t i = 0; i < n; ++i) {
      carry += digit * by[i];
      borrow += int64_t{rest[i]} - static_cast<uint32_t>(carry);
      rest[i] = static_cast<uint32_t>(borrow);
      carry >>= 32;
      borrow >>= 32;
    }
    borrow += int64_t{rest[n]} - static_cast<int64_t>(carry);
    rest[n] = static_cast<uint32_t>(borrow);
    if (borrow >= 0) return static_cast<uint32_t>(digit);
    carry = 0;  // one too many was subtracted
    for (uint32_t i = 0; i < n; ++i) {
      carry += uint64_t{rest[i]} + by[i];
      rest[i] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    rest[n] += static_cast<uint32_t>(carry);
    return static_cast<uint32_t>(digit - 1);
  }

  uint32_t *block_ = nullptr;
};

}  // namespace bench
