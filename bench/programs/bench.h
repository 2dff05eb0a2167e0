// What the benchmark programs share: a clock, random numbers, parameters from argv, what the kernel says about the
// process's memory, and the one JSON line at the end.
//
// Nothing here that runs while something is measured calls malloc: arrays of the tests come from mmap, files are read
// into the stack. The last field of each JSON line is the path of the object that the process got its malloc from, so
// that a runner can tell a figure of the library under test from one of a preload that did not take effect.

#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <system_error>
#include <thread>

namespace bench {

[[noreturn, gnu::format(printf, 1, 2)]] inline void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(2);
}

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

inline double seconds_since(uint64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-9; }

inline void sleep_ms(uint64_t ms) {
  timespec t = {static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000) * 1000000};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
}

// xorshift64*: a few cycles a number, so that the test's own work stays small beside malloc's.
class Random {
 public:
  explicit Random(uint64_t seed) : state_((seed + 1) * 0x9E3779B97F4A7C15u) {
    for (int i = 0; i < 8; ++i) next();
  }

  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }

  // Uniform in [0, n), n below 2^32. No division: it would cost as much as a malloc.
  size_t below(size_t n) { return static_cast<size_t>(((next() >> 32) * n) >> 32); }
  // Uniform in [low, high].
  size_t between(size_t low, size_t high) { return low + below(high - low + 1); }

 private:
  uint64_t state_;
};

template <class T>
void shuffle(T *items, size_t count, Random *random) {
  for (size_t i = count; i > 1; --i) {
    const size_t other = random->below(i);
    const T kept = items[i - 1];
    items[i - 1] = items[other];
    items[other] = kept;
  }
}

// Zeroed and resident before anything is measured; never from the malloc under test. For T whose zero bytes are valid.
template <class T>
T *map_array(size_t count) {
  void *p = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED) die("cannot map %zu bytes for the test's own array", count * sizeof(T));
  return static_cast<T *>(p);
}

template <class T>
void unmap_array(T *array, size_t count) {
  munmap(array, count * sizeof(T));
}

inline void *must_malloc(size_t size) {
  void *p = malloc(size);
  if (__builtin_expect(p == nullptr, 0)) die("malloc(%zu) failed", size);
  return p;
}

// The first and the last byte: for objects up to a page that makes all of their pages resident.
inline void touch_ends(void *object, size_t size) {
  volatile char *bytes = static_cast<volatile char *>(object);
  bytes[0] = 1;
  bytes[size - 1] = 1;
}

inline void touch_pages(void *object, size_t size) {
  volatile char *bytes = static_cast<volatile char *>(object);
  for (size_t i = 0; i < size; i += 4096) bytes[i] = 1;
  bytes[size - 1] = 1;
}

// A parameter `name=value`. Values may end in k, m or g (powers of 1024).
struct Param {
  const char *name;
  uint64_t value;
  const char *meaning;

  operator uint64_t() const { return value; }
};

inline bool parse_value(const char *text, uint64_t *value) {
  char *end;
  errno = 0;
  *value = strtoull(text, &end, 10);
  if (end == text || *text == '-' || errno != 0) return false;
  switch (*end) {
    case 'k':
      *value <<= 10, ++end;
      break;
    case 'm':
      *value <<= 20, ++end;
      break;
    case 'g':
      *value <<= 30, ++end;
      break;
  }
  return *end == '\0';
}

inline void parse(int argc, char **argv, std::initializer_list<Param *> params) {
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--help") == 0) {
      printf("%s [name=value...]\n", argv[0]);
      for (const Param *p : params)
        printf("  %s=%llu  %s\n", p->name, static_cast<unsigned long long>(p->value), p->meaning);
      exit(0);
    }
    const char *equals = strchr(argv[i], '=');
    const size_t length = equals != nullptr ? static_cast<size_t>(equals - argv[i]) : strlen(argv[i]);
    Param *found = nullptr;
    for (Param *p : params) {
      if (strlen(p->name) == length && strncmp(p->name, argv[i], length) == 0) found = p;
    }
    if (found == nullptr) die("%s: no parameter \"%.*s\" (see --help)", argv[0], static_cast<int>(length), argv[i]);
    if (equals == nullptr || !parse_value(equals + 1, &found->value))
      die("%s: \"%s\" is no value for %s (see --help)", argv[0], equals != nullptr ? equals + 1 : "", found->name);
  }
}

// The field `name` (with its colon) of a /proc file of "name: number kB" lines, in bytes; 0 if there is none.
inline uint64_t proc_bytes(const char *path, const char *name) {
  char text[8192];
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  size_t length = 0;
  for (ssize_t n; length < sizeof(text) - 1 && (n = read(fd, text + length, sizeof(text) - 1 - length)) > 0;)
    length += static_cast<size_t>(n);
  close(fd);
  text[length] = '\0';
  for (const char *line = text; line != nullptr; line = strchr(line, '\n')) {
    if (*line == '\n') ++line;
    if (strncmp(line, name, strlen(name)) == 0) return strtoull(line + strlen(name), nullptr, 10) * 1024;
  }
  return 0;
}

// smaps_rollup counts pages; VmRSS is off by up to some dozens of pages a CPU on newer kernels.
inline uint64_t rss_bytes() {
  const uint64_t exact = proc_bytes("/proc/self/smaps_rollup", "Rss:");
  return exact != 0 ? exact : proc_bytes("/proc/self/status", "VmRSS:");
}

// Of this program image alone; ru_maxrss would also count the process that started it.
inline uint64_t peak_rss_bytes() { return proc_bytes("/proc/self/status", "VmHWM:"); }

// The object file that malloc resolves to in this process.
inline const char *malloc_path() {
  Dl_info info;
  void *function = dlsym(RTLD_DEFAULT, "malloc");
  if (function == nullptr || dladdr(function, &info) == 0 || info.dli_fname == nullptr) return "";
  return info.dli_fname;
}

class Json {
 public:
  explicit Json(const char *program) { append("{\"program\": \"%s\"", program); }

  Json &number(const char *name, double value) { return append(", \"%s\": %.9g", name, value); }
  Json &count(const char *name, uint64_t value) {
    return append(", \"%s\": %llu", name, static_cast<unsigned long long>(value));
  }
  Json &param(const Param &p) { return count(p.name, p.value); }
  Json &speed(double seconds, uint64_t operations) {
    return number("seconds", seconds).number("ops_per_second", static_cast<double>(operations) / seconds);
  }

  // Ends the line and writes it in one piece.
  void print() {
    count("rss_peak_bytes", peak_rss_bytes());
    append(", \"malloc\": \"%s\"}\n", malloc_path());
    for (size_t done = 0; done < length_;) {
      const ssize_t n = write(STDOUT_FILENO, text_ + done, length_ - done);
      if (n < 0 && errno != EINTR) die("cannot write the result: %s", strerror(errno));
      if (n > 0) done += static_cast<size_t>(n);
    }
  }

 private:
  [[gnu::format(printf, 2, 3)]] Json &append(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(text_ + length_, sizeof(text_) - length_, format, arguments);
    va_end(arguments);
    if (n < 0 || static_cast<size_t>(n) >= sizeof(text_) - length_) die("the result line is too long");
    length_ += static_cast<size_t>(n);
    return *this;
  }

  size_t length_ = 0;
  char text_[4096];
};

class Barrier {
 public:
  explicit Barrier(size_t parties) { pthread_barrier_init(&barrier_, nullptr, static_cast<unsigned>(parties)); }
  ~Barrier() { pthread_barrier_destroy(&barrier_); }
  Barrier(const Barrier &) = delete;
  Barrier &operator=(const Barrier &) = delete;
  void wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_;
};

// Threads that run `body(index)`. The handles come from mmap; what pthread_create allocates is small and the same for
// every allocator.
class Threads {
 public:
  template <class Body>
  Threads(size_t count, Body body) : threads_(map_array<std::thread>(count)), count_(count) {
    for (size_t i = 0; i < count; ++i) {
      try {
        new (&threads_[i]) std::thread(body, i);
      } catch (const std::system_error &error) {
        die("cannot start thread %zu: %s", i, error.what());
      }
    }
  }
  Threads(const Threads &) = delete;
  Threads &operator=(const Threads &) = delete;

  void join() {
    for (size_t i = 0; i < count_; ++i) threads_[i].join();
    unmap_array(threads_, count_);
  }

 private:
  std::thread *threads_;
  size_t count_;
};

// Seconds from when all threads that wait at `start`, and this one, are there until they have ended.
inline double run(Barrier *start, Threads *threads) {
  start->wait();
  const uint64_t begin = now_ns();
  threads->join();
  return seconds_since(begin);
}

}  // namespace bench
