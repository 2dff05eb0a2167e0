// Marks by which a program knows its objects again, so that an allocator that hands out memory twice, or loses what was
// written, ends the program instead of giving a figure.
//
// Each object begins with its size and a number of its own, and ends with a hash of the two. A ledger marks what it
// allocates, checks and wipes the mark of what it frees, and keeps sums. Objects may be freed through the ledger of
// another thread: then only the sums over all ledgers mean something, and these must be 0 at the end.

#pragma once

#include <atomic>

#include "bench.h"

namespace bench {

constexpr size_t kMinMarked = 12;  // head and tail do not overlap

struct Mark {
  uint32_t size, id;
  uint32_t tail() const { return (size * 0x9E3779B1u) ^ (id * 0x85EBCA77u) ^ 0x27D4EB2Fu; }
};

inline void mark(void *object, Mark m) {
  char *bytes = static_cast<char *>(object);
  const uint32_t tail = m.tail();
  memcpy(bytes, &m, sizeof(m));
  memcpy(bytes + m.size - sizeof(tail), &tail, sizeof(tail));
}

inline Mark checked(const void *object) {
  const char *bytes = static_cast<const char *>(object);
  Mark m;
  uint32_t tail = 0;
  memcpy(&m, bytes, sizeof(m));
  if (m.size >= kMinMarked) memcpy(&tail, bytes + m.size - sizeof(tail), sizeof(tail));
  if (__builtin_expect(m.size < kMinMarked || tail != m.tail(), 0)) die("an object lost its contents");
  return m;
}

// One for each thread, on cache lines of its own. Zero bytes are a valid, empty ledger.
class alignas(128) Ledger {
 public:
  void *allocate(size_t size) {
    void *object = must_malloc(size);
    enter(object, size);
    return object;
  }

  // For objects that do not come from malloc(size) itself.
  void enter(void *object, size_t size) {
    const Mark m{static_cast<uint32_t>(size), ++serial_};
    mark(object, m);
    add(1, size, m.id);
  }

  void release(void *object) {
    leave(object);
    free(object);
  }

  void leave(void *object) {
    const Mark m = checked(object);
    memset(object, 0, sizeof(m));  // whoever gets it a second time finds no mark
    add(uint64_t{0} - 1, uint64_t{0} - m.size, uint64_t{0} - m.id);
  }

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // The sum is exact while the threads rest, and near it while they run.
  static uint64_t live_bytes(const Ledger *all, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; ++i) sum += all[i].bytes();
    return sum;
  }

  static void must_balance(const Ledger *all, size_t count) {
    uint64_t objects = 0, ids = 0;
    for (size_t i = 0; i < count; ++i) objects += all[i].objects_, ids += all[i].ids_;
    if (objects != 0 || ids != 0 || live_bytes(all, count) != 0) die("not the same objects were freed as allocated");
  }

 private:
  void add(uint64_t objects, uint64_t bytes, uint64_t id) {
    objects_ += objects;
    ids_ += id;
    bytes_.store(bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }

  uint64_t objects_, ids_;  // modulo 2^64: a thread may free more than it allocates
  std::atomic<uint64_t> bytes_;
  uint32_t serial_;
};

// The highest of the values that it is shown.
struct Peak {
  uint64_t value = 0;
  void note(uint64_t now) {
    if (now > value) value = now;
  }
};

// Peak resident memory above `before` by what the program itself held at most.
inline double peak_by_live(uint64_t before, uint64_t live_peak) {
  const uint64_t peak = peak_rss_bytes();
  if (peak <= before || live_peak == 0) return 0;
  return static_cast<double>(peak - before) / static_cast<double>(live_peak);
}

// Sizes such that each power of two gets about the same number: small ones are more frequent.
inline size_t log_uniform(Random *random, size_t low, size_t high) {
  const unsigned first = 63u - static_cast<unsigned>(__builtin_clzll(low));
  const unsigned last = 63u - static_cast<unsigned>(__builtin_clzll(high));
  for (;;) {
    const size_t power = size_t{1} << random->between(first, last);
    const size_t size = power + random->below(power);
    if (size >= low && size <= high) return size;
  }
}

}  // namespace bench
