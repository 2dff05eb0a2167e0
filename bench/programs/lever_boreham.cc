// lever_boreham: each thread allocates an object and frees it, again and again.
//
// Source: the first test of Lever and Boreham, "malloc() Performance in a Multithreaded Linux Environment", USENIX
// FREENIX 2000, which Evans' announcement of jemalloc (2005) reports too: sizes are fixed, the threads share nothing,
// and the work is divided among them. (What is called malloc-test today is a later one: malloc_test.cc.)
//
// Stresses: whether threads that have nothing to do with each other disturb each other. An allocator that scales takes
// the same time for 2 threads on 2 CPUs as for half of the work on one. The authors look at the spread between the
// threads, too: reported is the slowest thread's time by the fastest's.

#include "bench.h"

namespace {

using bench::Param;

Param threads{"threads", 2, "threads"};
Param pairs{"pairs", 100000000, "malloc and free pairs in all"};
Param size{"size", 512, "bytes an object (at least 8)"};
Param touch{"touch", 1, "1: write the object's first word and check it before free; 0: touch nothing"};

struct alignas(128) Worker {
  double seconds;
  uint64_t wrong;
};

void run(Worker *worker, uint64_t count) {
  const size_t bytes = size;
  const bool check = touch != 0;
  uint64_t wrong = 0;
  const uint64_t begin = bench::now_ns();
  for (uint64_t i = 0; i < count; ++i) {
    void *object = bench::must_malloc(bytes);
    if (check) {
      volatile uint64_t *word = static_cast<volatile uint64_t *>(object);
      *word = reinterpret_cast<uintptr_t>(worker) + i;
      wrong += *word != reinterpret_cast<uintptr_t>(worker) + i;
    }
    asm volatile("" : "+r"(object));
    free(object);
  }
  worker->seconds = bench::seconds_since(begin);
  worker->wrong = wrong;
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &pairs, &size, &touch});
  if (threads == 0 || size < 8) bench::die("%s: threads must be at least 1, size at least 8", argv[0]);
  Worker *workers = bench::map_array<Worker>(threads);
  const uint64_t share = pairs / threads;
  bench::Barrier start(threads + 1);
  bench::Threads running(threads, [&](size_t i) {
    start.wait();
    run(&workers[i], share);
  });
  const double seconds = bench::run(&start, &running);
  double fastest = workers[0].seconds, slowest = workers[0].seconds;
  for (size_t i = 0; i < threads; ++i) {
    if (workers[i].wrong != 0) bench::die("an object lost its contents");
    if (workers[i].seconds < fastest) fastest = workers[i].seconds;
    if (workers[i].seconds > slowest) slowest = workers[i].seconds;
  }
  bench::Json("lever_boreham")
      .speed(seconds, share * threads)
      .param(threads)
      .param(size)
      .param(touch)
      .number("slowest_by_fastest", slowest / fastest)
      .print();
}
