// Words that many threads write and read, and that order nothing: every access is relaxed, and needs no comment.
//
//   Hint<T>       a guess, a mark, a time, a setting. A store may be lost to another thread's, a load may be stale; a
//                 reader gets by with any value that the word ever had.
//   Counter<T>    a sum that many threads add to, exact when nothing is in flight: statistics and estimates.
//
// Neither orders other memory: a reader of a new value need not see what was written before it. A word that publishes
// or guards something is an Atomic<T>, with orders and their tags.
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
  // Of several threads that replace the same value one succeeds, and does what the change asks for. On failure
  // `expected` is what was found.
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
  // Both return the value before, of the type that Atomic returns: from that the explorer learns whether it is used.
  FOLIO_INLINE auto add(T more) { return this->word.fetch_add(more, order::relaxed); }  // relaxed: what this type is
  FOLIO_INLINE auto sub(T less) { return this->word.fetch_sub(less, order::relaxed); }  // relaxed: what this type is
};

}  // namespace folio
