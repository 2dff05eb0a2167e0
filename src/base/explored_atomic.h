// Atomic<T> of the builds with FOLIO_EXPLORE: every operation goes to the interleaving explorer, with its order and its
// place in the source, and the explorer performs it (tests/stress/explorer). Included by base/atomic.h alone.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace folio {

struct ExploredOp {
  enum Kind : uint8_t { kLoad, kStore, kExchange, kCompareExchange, kOr, kAnd, kAdd, kSub };

  Kind kind;
  int order;
  unsigned bytes;
  uint64_t operand;   // what is stored, or combined with what is there
  uint64_t expected;  // by a compare_exchange
  const char* file;
  unsigned line;
};

}  // namespace folio

// Does the operation and returns the value before; a compare_exchange succeeds if that is the expected one.
extern "C" uint64_t folio_explore(void* word, const folio::ExploredOp* op);
extern "C" bool folio_exploring;         // an exploration runs: loads go to the explorer, too
extern "C" void folio_explore_result();  // the program uses the value that the last operation returned

namespace folio {

// The result of a fetch_...: most callers that count or mark do not use it.
template <class T>
struct Fetched {
  T value;
  operator T() const {  // NOLINT(google-explicit-constructor)
    folio_explore_result();
    return value;
  }
};

template <class T>
class Atomic {
 public:
  constexpr Atomic() = default;
  explicit constexpr Atomic(T value) : value_(value) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(int order, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) const {
    if (!folio_exploring) return value_;
    return const_cast<Atomic*>(this)->tell(ExploredOp::kLoad, order, {}, {}, file, line);
  }
  void store(T value, int order, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    tell(ExploredOp::kStore, order, value, {}, file, line);
  }
  T exchange(T value, int order, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return tell(ExploredOp::kExchange, order, value, {}, file, line);
  }
  bool compare_exchange(T& expected, T desired, int order, const char* file = __builtin_FILE(),
                        unsigned line = __builtin_LINE()) {
    const T found = tell(ExploredOp::kCompareExchange, order, desired, expected, file, line);
    const bool done = bits_of(found) == bits_of(expected);
    if (!done) expected = found;
    return done;
  }
  Fetched<T> fetch_or(T bits, int order, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {tell(ExploredOp::kOr, order, bits, {}, file, line)};
  }
  Fetched<T> fetch_and(T bits, int order, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {tell(ExploredOp::kAnd, order, bits, {}, file, line)};
  }
  Fetched<T> fetch_add(T amount, int order, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {tell(ExploredOp::kAdd, order, amount, {}, file, line)};
  }
  Fetched<T> fetch_sub(T amount, int order, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {tell(ExploredOp::kSub, order, amount, {}, file, line)};
  }

 private:
  static uint64_t bits_of(T value) {
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    return bits;
  }
  T tell(ExploredOp::Kind kind, int order, T operand, T expected, const char* file, unsigned line) {
    const ExploredOp op = {kind, order, sizeof(T), bits_of(operand), bits_of(expected), file, line};
    const uint64_t bits = folio_explore(&value_, &op);
    T value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }

  T value_{};
};

}  // namespace folio
