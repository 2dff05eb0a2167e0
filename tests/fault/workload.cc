// A fixed amount of allocating, between two marks, during which system calls may fail (inject.cc). Whatever fails: an
// allocation gives null with ENOMEM or an object, contents hold, nothing ends the process; and after the second mark,
// when nothing fails any more, every allocation succeeds again.
//
//   workload        starts with live objects of every kind
//   workload cold   the first allocation of the process falls between the marks
#include <errno.h>
#include <folio/folio.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr unsigned kMarkPrctl = 0x666f6c69;  // as in supervisor.h
constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

constexpr size_t kSizes[] = {1,         24,        100,        500,        1500,     5 * kKiB, 9 * kKiB,
                             20 * kKiB, 70 * kKiB, 300 * kKiB, 900 * kKiB, 1 * kMiB, 3 * kMiB};
constexpr unsigned kKinds = sizeof kSizes / sizeof kSizes[0];
constexpr unsigned kEach = 4;

// Of what is large one is enough: touching pages is what the time goes to.
constexpr unsigned count_of(unsigned kind) { return kSizes[kind] > 100 * kKiB ? 1 : kEach; }

// Without stdio and malloc: both may be what failed.
[[noreturn]] void fail(const char *what, size_t detail) {
  char line[200];
  const int length = snprintf(line, sizeof line, "workload: %s (%zu)\n", what, detail);
  if (write(STDERR_FILENO, line, static_cast<size_t>(length)) < 0) _exit(2);
  _exit(1);
}

template <class T>
T opaque(T value) {
  asm volatile("" : "+r"(value) : : "memory");
  return value;
}

// Set between the marks: failing is allowed.
std::atomic<bool> faulty{false};
std::atomic<unsigned> refused{0};

// An object, or null with ENOMEM while that is allowed.
void *checked(void *object, size_t size) {
  if (object != nullptr) return object;
  if (errno != ENOMEM) fail("null without ENOMEM", static_cast<size_t>(errno));
  if (!faulty) fail("null though nothing fails", size);
  refused++;
  return nullptr;
}

// A byte in each 512, and the last.
void stamp(void *object, size_t size, unsigned seed) {
  auto *byte = static_cast<unsigned char *>(object);
  for (size_t i = 0; i < size; i += 512) byte[i] = static_cast<unsigned char>(i / 512 + seed);
  byte[size - 1] = static_cast<unsigned char>(seed);
}

void check(const void *object, size_t size, unsigned seed, bool whole) {
  const auto *byte = static_cast<const unsigned char *>(object);
  for (size_t i = 0; i + 1 < size; i += 512) {
    if (byte[i] != static_cast<unsigned char>(i / 512 + seed)) fail("contents", size);
  }
  if (whole && byte[size - 1] != static_cast<unsigned char>(seed)) fail("last byte", size);
}

// A set of objects of every kind, some of which may be missing.
struct Objects {
  void *object[kKinds][kEach];

  static unsigned seed(unsigned kind, unsigned i) { return kind * 31 + i * 7 + 1; }

  void allocate() {
    for (unsigned kind = 0; kind < kKinds; kind++) {
      for (unsigned i = 0; i < count_of(kind); i++) {
        const size_t size = kSizes[kind];
        errno = 0;
        object[kind][i] = checked(opaque(malloc(size)), size);
        if (object[kind][i] != nullptr) stamp(object[kind][i], size, seed(kind, i));
      }
    }
  }

  void check_all() const {
    for (unsigned kind = 0; kind < kKinds; kind++) {
      for (unsigned i = 0; i < count_of(kind); i++) {
        if (object[kind][i] != nullptr) check(object[kind][i], kSizes[kind], seed(kind, i), true);
      }
    }
  }

  // Every second one, or all.
  void release(bool all) {
    for (unsigned kind = 0; kind < kKinds; kind++) {
      for (unsigned i = 0; i < count_of(kind); i++) {
        if (!all && i % 2 == 0 && kEach == count_of(kind)) continue;
        const int before = errno = 4711;
        free(object[kind][i]);
        if (errno != before) fail("free changed errno", static_cast<size_t>(errno));
        object[kind][i] = nullptr;
      }
    }
  }
};

// Grows one object from a byte to many MiB, and shrinks it again.
void grow_and_shrink() {
  size_t size = 1;
  errno = 0;
  void *object = checked(opaque(malloc(size)), size);
  if (object == nullptr) return;
  stamp(object, size, 5);
  while (size < 40 * kMiB) {  // beyond 16 MiB a huge object moves
    const size_t next = size * 3 / 2 + 700;
    errno = 0;
    void *grown = checked(realloc(object, next), next);
    if (grown == nullptr) break;  // the old one must be as it was
    object = grown;
    check(object, size, 5, size > 1);
    stamp(object, next, 5);
    size = next;
  }
  check(object, size, 5, true);
  while (size > 1000) {
    const size_t next = size / 3;
    errno = 0;
    void *shrunk = checked(realloc(object, next), next);
    if (shrunk == nullptr) break;
    object = shrunk;
    check(object, next, 5, false);
    size = next;
    stamp(object, size, 5);
  }
  free(object);
}

// Memory that should have been purged, but perhaps was not, must come back zeroed from calloc.
void zeroed_after_dirty() {
  for (size_t size : {500 * size_t{1}, 20 * kKiB, 200 * kKiB, 900 * kKiB, 3 * kMiB}) {
    for (int round = 0; round < 2; round++) {
      errno = 0;
      void *dirty = checked(opaque(malloc(size)), size);
      if (dirty != nullptr) memset(dirty, 0xff, size);
      free(dirty);
      if (round == 0) folio_collect();
      errno = 0;
      auto *zero = static_cast<unsigned char *>(checked(opaque(calloc(1, size)), size));
      if (zero == nullptr) continue;
      for (size_t i = 0; i < size; i++) {
        if (zero[i] != 0) fail("calloc gave a dirty byte", size);
      }
      memset(zero, 0xee, size);
      free(zero);
    }
  }
}

void aligned() {
  for (size_t alignment = 16; alignment <= 4 * kMiB; alignment *= 16) {
    for (size_t size : {size_t{10}, 5 * kKiB, 3 * kMiB}) {
      errno = 0;
      void *object = checked(opaque(aligned_alloc(alignment, size)), size);
      if (reinterpret_cast<uintptr_t>(object) % alignment != 0) fail("alignment", alignment);
      if (object != nullptr) stamp(object, size, 3);
      void *moved = nullptr;
      errno = 4711;
      const int error = posix_memalign(&moved, alignment, size);
      if (errno != 4711) fail("posix_memalign changed errno", static_cast<size_t>(errno));
      if (error != 0 && (error != ENOMEM || !faulty)) fail("posix_memalign", static_cast<size_t>(error));
      free(moved);
      if (object != nullptr) check(object, size, 3, true);
      free(object);
    }
  }
}

void *thread_main(void *) {
  static thread_local Objects objects;
  objects.allocate();
  objects.check_all();
  objects.release(true);
  return nullptr;
}

// Threads may be refused; those that start must work.
void threads() {
  for (int i = 0; i < 2; i++) {
    pthread_t thread;
    const int error = pthread_create(&thread, nullptr, thread_main, nullptr);
    if (error == 0) {
      pthread_join(thread, nullptr);
    } else if (!faulty) {
      fail("pthread_create", static_cast<size_t>(error));
    }
  }
}

Objects live, more;

void everything() {
  more.allocate();
  live.check_all();
  more.check_all();
  grow_and_shrink();
  more.release(false);
  zeroed_after_dirty();
  folio_collect();
  more.check_all();
  aligned();
  threads();
  more.release(true);
  folio_collect();
  live.check_all();
}

void mark(bool on) { prctl(static_cast<int>(kMarkPrctl), static_cast<unsigned long>(on), 0, 0, 0); }

}  // namespace

int main(int count, char **arguments) {
  const bool cold = count > 1 && strcmp(arguments[1], "cold") == 0;
  if (!cold) live.allocate();
  faulty = true;
  mark(true);
  everything();
  mark(false);
  faulty = false;
  everything();
  live.check_all();
  live.release(true);
  folio_stats stats = {};
  stats.struct_size = sizeof stats;
  // What the housekeeper has just claimed, to give it back, counts as live. (A sleep may be refused.)
  for (const time_t end = time(nullptr) + 20; time(nullptr) < end; sched_yield()) {
    folio_collect();
    if (folio_stats_get(&stats) && stats.live <= kMiB) return 0;
  }
  fail("live at the end", stats.live);
}
