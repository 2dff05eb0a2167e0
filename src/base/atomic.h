// Atomic<T>: the one wrapper around the compiler's atomic builtins. Owned by nobody, used by every layer.
//
// Why not std::atomic: the core uses no header of the C++ library, as it must build against any libc; and two builds
// need a hook at each atomic operation:
//   FOLIO_EXPLORE   the interleaving explorer does the operation (explored_atomic.h)
//   FOLIO_COUNT     each read-modify-write is reported with its address, which shows the structure that it changes
//
// Memory orders are spelled order::x. Every order stronger than relaxed carries a tag, [name], that names the edge and
// appears at both of its ends (docs/CONCURRENCY.md).
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(FOLIO_COUNT)
// gives: the operation hands something on (a release, or bits cleared). done: false for a failed compare_exchange.
extern "C" void folio_count_rmw(const void* word, bool gives, bool done);
#define FOLIO_ATOMIC_COUNT(gives, done) folio_count_rmw(&value_, gives, done)
#else
#define FOLIO_ATOMIC_COUNT(gives, done) static_cast<void>(0)
#endif

#define FOLIO_INLINE [[gnu::always_inline]] inline
#define FOLIO_NOINLINE [[gnu::noinline]]
#define FOLIO_COLD [[gnu::noinline, gnu::cold]]

namespace folio {

namespace order {
inline constexpr int relaxed = __ATOMIC_RELAXED;
inline constexpr int acquire = __ATOMIC_ACQUIRE;
inline constexpr int release = __ATOMIC_RELEASE;
inline constexpr int acq_rel = __ATOMIC_ACQ_REL;
inline constexpr int seq_cst = __ATOMIC_SEQ_CST;
}  // namespace order
}  // namespace folio

#if defined(FOLIO_EXPLORE)
#include "base/explored_atomic.h"
#else

namespace folio {

template <class T>
class Atomic {
 public:
  constexpr Atomic() = default;
  explicit constexpr Atomic(T value) : value_(value) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  FOLIO_INLINE T load(int order) const { return __atomic_load_n(&value_, order); }
  FOLIO_INLINE void store(T value, int order) { __atomic_store_n(&value_, value, order); }
  FOLIO_INLINE T exchange(T value, int order) {
    before_rmw();
    return __atomic_exchange_n(&value_, value, order);
  }
  // On failure `expected` is what was found, read relaxed.
  FOLIO_INLINE bool compare_exchange(T& expected, T desired, int order) {
    const bool done = __atomic_compare_exchange_n(&value_, &expected, desired, false, order, __ATOMIC_RELAXED);
    FOLIO_ATOMIC_COUNT(order == __ATOMIC_RELEASE, done);
    return done;
  }
  FOLIO_INLINE T fetch_or(T bits, int order) {
    before_rmw();
    return __atomic_fetch_or(&value_, bits, order);
  }
  FOLIO_INLINE T fetch_and(T bits, int order) {
    before_rmw(true);
    return __atomic_fetch_and(&value_, bits, order);
  }
  FOLIO_INLINE T fetch_add(T amount, int order) {
    before_rmw();
    return __atomic_fetch_add(&value_, amount, order);
  }
  FOLIO_INLINE T fetch_sub(T amount, int order) {
    before_rmw();
    return __atomic_fetch_sub(&value_, amount, order);
  }

 private:
  FOLIO_INLINE void before_rmw([[maybe_unused]] bool gives = false) { FOLIO_ATOMIC_COUNT(gives, true); }

  T value_{};
};

}  // namespace folio

#endif
