// pauses: how long can a single malloc or free take while memory is being given back?
//
// Source: the pause of three seconds in a database server, in the code that gathers free pages to give back, for which
// Kuszmaul, "SuperMalloc", ISMM 2015, section 9 says it was written.
//
// Stresses: the longest single call. Background threads allocate and free bursts, so that there is always something
// to give back; the main thread replaces objects of 16 bytes to 1 MiB (each power of two equally likely), takes the
// time of each call, and touches the objects outside of it.
//
// A long time may also be the scheduler's: a call during which the main thread lost its CPU. Whoever runs more threads
// than CPUs measures mostly that, so the calls are also reported without those near which the kernel counted an
// involuntary context switch (looked up after each call of more than 20 us, and every 256 calls).

#include <atomic>

#include "bench.h"
#include "call_times.h"

namespace {

using bench::Param;

Param seconds{"seconds", 3, "how long it runs"};
Param threads{"threads", 1, "background threads"};
Param burst{"burst", 32u << 20, "bytes that a background thread allocates before it frees them"};
Param rest_ms{"rest_ms", 20, "how long a background thread rests after each burst"};
Param slots{"slots", 256, "live objects of the main thread"};
Param seed{"seed", 1, "of the sizes and victims"};

std::atomic<bool> stop{false};

size_t random_size(bench::Random *random) {
  const size_t power = size_t{16} << random->below(16);
  return power + random->below(power + 1);
}

void make_bursts(size_t index) {
  bench::Random random(seed * 1000 + 1 + index);
  const size_t capacity = burst / 16 + 1;
  void **objects = bench::map_array<void *>(capacity);
  while (!stop.load(std::memory_order_relaxed)) {
    size_t count = 0;
    for (uint64_t bytes = 0; bytes < burst && count < capacity;) {
      const size_t size = random_size(&random);
      objects[count] = bench::must_malloc(size);
      bench::touch_pages(objects[count++], size);
      bytes += size;
    }
    while (count != 0) free(objects[--count]);
    bench::sleep_ms(rest_ms);
  }
}

bench::CallTimes malloc_times, free_times;

void measure(double *elapsed) {
  bench::Random random(seed * 1000);
  void **objects = bench::map_array<void *>(slots);
  const uint64_t begin = bench::now_ns();
  const uint64_t end = begin + seconds * 1000000000u;
  bench::Disturbance disturbance;
  uint64_t now = begin;
  for (uint64_t i = 0; now < end; ++i) {
    disturbance.poll(i);
    const size_t victim = random.below(slots);
    const size_t size = random_size(&random);
    const uint64_t before_free = bench::now_ns();
    free(objects[victim]);
    const uint64_t before_malloc = bench::now_ns();
    objects[victim] = malloc(size);
    now = bench::now_ns();
    if (objects[victim] == nullptr) bench::die("malloc(%zu) failed", size);
    free_times.record(before_malloc - before_free, &disturbance);
    malloc_times.record(now - before_malloc, &disturbance);
    bench::touch_pages(objects[victim], size);
  }
  *elapsed = bench::seconds_since(begin);
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&seconds, &threads, &burst, &rest_ms, &slots, &seed});
  if (slots == 0) bench::die("%s: slots must be at least 1", argv[0]);
  bench::Threads background(threads, [](size_t i) { make_bursts(i); });
  double elapsed = 0;
  measure(&elapsed);
  stop = true;
  background.join();
  bench::Json json("pauses");
  json.speed(elapsed, malloc_times.count()).param(threads).count("calls", malloc_times.count() + free_times.count());
  malloc_times.report(&json, "malloc");
  free_times.report(&json, "free");
  json.print();
}
