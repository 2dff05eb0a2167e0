#include "objects.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include <bit>

namespace soak {

namespace {

constexpr size_t kPage = 4096, kSampled = 16 * kPage;
constexpr uint64_t kStep = 0xD1B54A32D192ED03u;

std::atomic<uint64_t> next_tag{1};

uint64_t word_at(uint64_t tag, size_t offset) { return tag * 0x9E3779B97F4A7C15u + offset / 8 * kStep; }

// The parts of an object that are written and read, below `most`: all, or one page in 16 and the last one.
template <typename Visit>
void pieces(size_t size, size_t most, Visit visit) {
  if (size <= kWholeMost) {
    visit(size_t{0}, size < most ? size : most);
    return;
  }
  for (size_t at = 0; at < size && at < most; at += kSampled) {
    const size_t end = at + kPage < size ? at + kPage : size;
    visit(at, end < most ? end : most);
  }
  const size_t last = (size - kPage) & ~size_t{7};
  if (last < most) visit(last, size < most ? size : most);
}

void fill(const Object& object) {
  pieces(object.size, object.size, [&](size_t from, size_t to) {
    size_t at = from;
    for (; at + 8 <= to; at += 8) {
      const uint64_t word = word_at(object.tag, at);
      memcpy(object.at + at, &word, 8);
    }
    const uint64_t word = word_at(object.tag, at);
    if (at < to) memcpy(object.at + at, &word, to - at);
  });
}

[[noreturn]] void differs(const Object& o, size_t at, uint64_t expected, const char* when) {
  size_t byte = at;
  while (byte + 1 < o.size && byte < at + 7 && o.at[byte] == static_cast<char>(expected >> (byte - at) * 8)) ++byte;
  uint64_t found = 0;
  memcpy(&found, o.at + at, o.size - at < 8 ? o.size - at : 8);
  fail(
      "contents: %s, the object at %p of %zu bytes (usable %zu) has changed at byte %zu: the word there is %016lx, not "
      "%016lx",
      when, static_cast<void*>(o.at), o.size, malloc_usable_size(o.at), byte, found, expected);
}

void verify_below(const Object& object, size_t most, const char* when) {
  pieces(object.size, most, [&](size_t from, size_t to) {
    size_t at = from;
    for (; at + 8 <= to; at += 8) {
      uint64_t word;
      memcpy(&word, object.at + at, 8);
      if (word != word_at(object.tag, at)) differs(object, at, word_at(object.tag, at), when);
    }
    const uint64_t word = word_at(object.tag, at);
    if (at < to && memcmp(object.at + at, &word, to - at) != 0) differs(object, at, word, when);
  });
}

void verify_zero(const Object& object) {
  pieces(object.size, object.size, [&](size_t from, size_t to) {
    for (size_t at = from; at < to; ++at) {
      if (object.at[at] != 0) {
        fail("calloc: byte %zu of %zu at %p is %02x, not 0", at, object.size, static_cast<void*>(object.at),
             static_cast<unsigned char>(object.at[at]));
      }
    }
  });
}

// A small object is made for some alignment of up to 4 KiB, a large one of up to 4 MiB.
uint32_t alignment_for(Random& random, size_t size) {
  return static_cast<uint32_t>(random.below(size > kSmallMost ? 23 : random.one_in(16) ? 13 : 8));
}

void check_made(const Object& object) {
  if (object.at == nullptr) fail("out of memory: %zu bytes of alignment %u", object.size, 1u << object.alignment_log);
  const auto address = reinterpret_cast<uintptr_t>(object.at);
  const uint32_t least = object.size >= 16 ? 4 : static_cast<uint32_t>(std::bit_width(object.size | 1)) - 1;
  const uint32_t log = object.alignment_log > least ? object.alignment_log : least;
  if ((address & ((uintptr_t{1} << log) - 1)) != 0) {
    fail("alignment: %p for %zu bytes is no multiple of %lu", static_cast<void*>(object.at), object.size, 1ul << log);
  }
  if (malloc_usable_size(object.at) < object.size) {
    fail("malloc_usable_size: %zu for %p of %zu bytes", malloc_usable_size(object.at), static_cast<void*>(object.at),
         object.size);
  }
}

void charge(const Object& object, Count& who, int sign) {
  const auto bytes = static_cast<int64_t>(malloc_usable_size(object.at));
  who.live.fetch_add(sign * bytes, std::memory_order_relaxed);
  // Statistics count whole granules of 16 KiB. An aligned object may be a large one whatever its size.
  constexpr int64_t kMediumMost = 32832, kHugeFrom = (8 << 20) + 16384, kSpareMost = 3 * 4096;
  const bool starts_granule = reinterpret_cast<uintptr_t>(object.at) % 16384 == 0;
  if ((bytes > kMediumMost || starts_granule) && bytes <= kHugeFrom) {
    who.spare.fetch_add(sign * kSpareMost, std::memory_order_relaxed);
  }
}

using FreeSized = void (*)(void*, size_t);
using FreeAlignedSized = void (*)(void*, size_t, size_t);
const auto sized = reinterpret_cast<FreeSized>(dlsym(RTLD_DEFAULT, "folio_free_sized"));
const auto aligned_sized = reinterpret_cast<FreeAlignedSized>(dlsym(RTLD_DEFAULT, "folio_free_aligned_sized"));

}  // namespace

size_t small_size(Random& random) {
  const size_t kind = random.below(100);
  return 1 + random.below(kind < 60 ? 256 : kind < 80 ? 1024 : kind < 95 ? 4096 : kSmallMost);
}

size_t big_size(Random& random) {
  const size_t kind = random.below(1000);
  const size_t most = kind < 600   ? 256 << 10
                      : kind < 900 ? 2 << 20
                      : kind < 985 ? 8 << 20
                      : kind < 997 ? 24 << 20
                                   : 64 << 20;
  const size_t size = kSmallMost + 1 + random.below(most - kSmallMost);
  return settings.with[kHuge] || size <= size_t{8} << 20 ? size : size >> 3;
}

Object make(Random& random, size_t size, Count& who) {
  Object o{nullptr, size, next_tag.fetch_add(1, std::memory_order_relaxed), Kind::kPlain, 0};
  const size_t how = random.below(16);
  if (how < 9) {
    o.at = static_cast<char*>(malloc(size));
  } else if (how < 13) {
    o.at = static_cast<char*>(calloc(1, size));
    if (o.at != nullptr) verify_zero(o);
  } else if (how < 15) {
    o.kind = Kind::kAlignedAlloc;
    o.alignment_log = alignment_for(random, size);
    o.at = static_cast<char*>(aligned_alloc(size_t{1} << o.alignment_log, size));
  } else {
    o.kind = Kind::kMemalign;
    o.alignment_log = 3 + alignment_for(random, size) % 20;
    void* at = nullptr;
    const int error = posix_memalign(&at, size_t{1} << o.alignment_log, size);
    if (error != 0) fail("posix_memalign(%zu, %zu): %d", size_t{1} << o.alignment_log, size, error);
    o.at = static_cast<char*>(at);
  }
  check_made(o);
  charge(o, who, 1);
  fill(o);
  return o;
}

void verify(const Object& object) { verify_below(object, object.size, "later"); }

void release(Random& random, Object object, Count& who) {
  verify_below(object, object.size, "before free");
  charge(object, who, -1);
  if (sized != nullptr && object.kind == Kind::kPlain && random.one_in(4)) {
    sized(object.at, object.size);
  } else if (aligned_sized != nullptr && object.kind == Kind::kAlignedAlloc && random.one_in(2)) {
    aligned_sized(object.at, size_t{1} << object.alignment_log, object.size);
  } else {
    free(object.at);
  }
}

void resize(Object& object, size_t size, Count& who) {
  charge(object, who, -1);
  object.at = static_cast<char*>(realloc(object.at, size));
  const size_t kept = size < object.size ? size : object.size;
  if (object.at == nullptr) fail("out of memory: realloc from %zu to %zu bytes", object.size, size);
  // The old pattern, as far as it was to be kept.
  verify_below(object, kept, "after realloc");
  object.size = size;
  object.tag = next_tag.fetch_add(1, std::memory_order_relaxed);
  object.kind = Kind::kPlain;
  object.alignment_log = 0;
  check_made(object);
  charge(object, who, 1);
  fill(object);
}

// ---- Queues: of bounded length, many senders, one receiver (Vyukov's) ----

namespace {

constexpr size_t kQueueLength = 256;

struct Cell {
  std::atomic<size_t> turn;
  Object object;
};
struct alignas(64) Queue {
  std::atomic<size_t> head{0};
  alignas(64) size_t tail = 0;
  Cell cells[kQueueLength] = {};  // a cell's turn is stored less its index, so that zero is the start
};
Queue queues[kWorkers];
std::atomic<size_t> queued_bytes{0};

}  // namespace

bool send(unsigned worker, const Object& object) {
  Queue& q = queues[worker];
  if (queued_bytes.load(std::memory_order_relaxed) + object.size > settings.queued_bytes) return false;
  size_t head = q.head.load(std::memory_order_relaxed);
  for (;;) {
    const size_t index = head % kQueueLength;
    const size_t turn = q.cells[index].turn.load(std::memory_order_acquire) + index;
    if (turn == head) {
      if (q.head.compare_exchange_weak(head, head + 1, std::memory_order_relaxed)) break;
    } else if (turn < head) {
      return false;
    } else {
      head = q.head.load(std::memory_order_relaxed);
    }
  }
  const size_t index = head % kQueueLength;
  q.cells[index].object = object;
  queued_bytes.fetch_add(object.size, std::memory_order_relaxed);
  q.cells[index].turn.store(head + 1 - index, std::memory_order_release);
  return true;
}

bool receive(unsigned worker, Object& object) {
  Queue& q = queues[worker];
  const size_t index = q.tail % kQueueLength;
  if (q.cells[index].turn.load(std::memory_order_acquire) + index != q.tail + 1) return false;
  object = q.cells[index].object;
  q.cells[index].turn.store(q.tail + kQueueLength - index, std::memory_order_release);
  queued_bytes.fetch_sub(object.size, std::memory_order_relaxed);
  ++q.tail;
  return true;
}

}  // namespace soak
