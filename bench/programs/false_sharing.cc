// false_sharing: threads that write to small objects of their own, where an allocator may have put neighbours.
//
// Source: the programs for active and passive false sharing of Berger, McKinley, Blumofe and Wilson, "Hoard: A Scalable
// Memory Allocator for Multithreaded Applications", ASPLOS 2000, section 5 (later cache-thrash and cache-scratch).
//
// Stresses: whether objects of two threads share a cache line. With passive=1 the main thread allocates one object for
// each of them, side by side; each frees the one it was given, and may get it back.

#include "bench.h"

namespace {

using bench::Param;

Param threads{"threads", 2, "threads"};
Param passive{"passive", 1, "1: each thread first frees an object of the main thread's"};
Param rounds{"rounds", 2000, "objects allocated and freed in all, one after the other in each thread"};
Param writes{"writes", 100000, "to each byte of an object"};
Param size{"size", 8, "bytes an object"};

void write_to(char *object, uint64_t count) {
  volatile char *bytes = object;
  for (uint64_t i = 0; i < count; ++i) {
    for (uint64_t at = 0; at < size; ++at) bytes[at] = static_cast<char>(bytes[at] + 1);
  }
}

void work(void *given, uint64_t count) {
  free(given);
  for (uint64_t i = 0; i < count; ++i) {
    char *object = static_cast<char *>(bench::must_malloc(size));
    write_to(object, writes);
    free(object);
  }
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &passive, &rounds, &writes, &size});
  if (threads == 0 || size == 0) bench::die("%s: threads and size must be at least 1", argv[0]);
  void **given = bench::map_array<void *>(threads);
  for (size_t i = 0; i < threads; ++i) given[i] = passive != 0 ? bench::must_malloc(size) : nullptr;
  const uint64_t share = rounds / threads;
  bench::Barrier start(threads + 1);
  bench::Threads workers(threads, [&](size_t i) {
    start.wait();
    work(given[i], share);
  });
  const double seconds = bench::run(&start, &workers);
  bench::Json("false_sharing")
      .speed(seconds, share * threads * writes * size)
      .param(threads)
      .param(passive)
      .param(size)
      .print();
}
