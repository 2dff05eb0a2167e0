// Times of single calls, counted in buckets of at most 3 % width, so that a percentile of millions of calls needs no
// sorting and no memory that grows. Recording is a few instructions and never allocates.

#pragma once

#include <cstdint>

namespace bench {

class Histogram {
 public:
  void record(uint64_t value) {
    ++buckets_[index_of(value)];
    ++count_;
    sum_ += value;
    if (value > max_) max_ = value;
  }

  void add(const Histogram &other) {
    for (unsigned i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    if (other.max_ > max_) max_ = other.max_;
  }

  uint64_t count() const { return count_; }
  uint64_t max() const { return max_; }
  double mean() const { return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_); }

  // The upper end of the bucket that holds the call at rank `share` (0 to 1) of all.
  uint64_t percentile(double share) const {
    const uint64_t rank = static_cast<uint64_t>(share * static_cast<double>(count_));
    uint64_t seen = 0;
    for (unsigned i = 0; i < kBuckets; ++i) {
      seen += buckets_[i];
      if (seen > rank) return upper_end(i) < max_ ? upper_end(i) : max_;
    }
    return max_;
  }

 private:
  // Values below 64 have a bucket each; above, each power of two has 32.
  static constexpr unsigned kBuckets = 64 + 32 * 58;

  static unsigned index_of(uint64_t value) {
    if (value < 64) return static_cast<unsigned>(value);
    const unsigned exponent = 63u - static_cast<unsigned>(__builtin_clzll(value));
    return 32 * (exponent - 5) + static_cast<unsigned>(value >> (exponent - 5));
  }

  static uint64_t upper_end(unsigned index) {
    if (index < 64) return index;
    const unsigned shift = index / 32 - 1;
    return ((static_cast<uint64_t>(index % 32) + 33) << shift) - 1;
  }

  uint64_t buckets_[kBuckets] = {};
  uint64_t count_ = 0;
  uint64_t sum_ = 0;
  uint64_t max_ = 0;
};

}  // namespace bench
