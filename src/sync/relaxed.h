// Words that many threads write and read, and that order nothing: every access is relaxed, and needs no comment.
//
//   Hint<T>       a guess, a mark, a time, a setting: may be stale or lost to another's store, and whoever reads it
//                 gets by with any value that it ever had.
//   Counter<T>    a sum of what many add, exact when nothing is in flight: statistics and estimates.
//
// Neither says anything of other memory: who finds a new value need not find what was written before it. What publishes
// or guards something is an Atomic<T>, with its orders and their tags.
#pragma once

#include "base/atomic.h"

namespace folio {

template <class T>
class Hint {
 public:
  constexpr Hint() = default;
  explicit constexpr Hint(T value) : word(value) {}

  FOLIO_INLINE T get() const { return word.load(order::relaxed); }               // relaxed: what this type is
  FOLIO_INLINE void set(T value) { word.store(value, order::relaxed); }          // relaxed: what this type is
  FOLIO_INLINE T swap(T value) { return word.exchange(value, order::relaxed); }  // relaxed: what this type is
  // Who replaces a value does what goes with it, once. On failure `expected` is what was found.
  FOLIO_INLINE bool replace(T& expected, T value) {
    // relaxed: what this type is. unseen: two ticks at once do no harm; two steps of a claim that is lost make the pool
    // 64 KiB larger
    return word.compare_exchange(expected, value, order::relaxed);
  }
  FOLIO_INLINE void set_bits(T bits) { word.fetch_or(bits, order::relaxed); }  // relaxed: what this type is

 protected:
  Atomic<T> word;
};

template <class T>
class Counter : public Hint<T> {
 public:
  using Hint<T>::Hint;
  // Both return what it was, as Atomic does: the explorer learns from it whether anybody looks.
  FOLIO_INLINE auto add(T more) { return this->word.fetch_add(more, order::relaxed); }  // relaxed: what this type is
  FOLIO_INLINE auto sub(T less) { return this->word.fetch_sub(less, order::relaxed); }  // relaxed: what this type is
};

}  // namespace folio
