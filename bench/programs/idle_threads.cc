// idle_threads: what does each of a thousand threads keep that has done some work and then waits?
//
// Source: the reports of producer/consumer and thread-pool servers whose memory grows with the number of threads; the
// caches of Kuszmaul, "SuperMalloc", ISMM 2015, section 8 are small for this reason.
//
// Stresses: the memory of idle thread caches. Each thread keeps `slots` objects of random sizes, replaces them at
// random `ops` times, frees all, and waits. The baseline is taken when all threads exist and have touched as much stack
// as the work needs, before the work; reported is what is resident above it, by thread, at once and after some seconds.

#include <alloca.h>

#include "bench.h"

namespace {

using bench::Param;

Param threads{"threads", 1000, "threads"};
Param ops{"ops", 5000, "malloc and free pairs of each"};
Param slots{"slots", 64, "live objects a thread while it works"};
Param min_size{"min", 16, "smallest size"};
Param max_size{"max", 2048, "largest size"};
Param idle{"idle", 5, "seconds until the second look"};
Param seed{"seed", 1, "of the sizes and victims"};

void work(void **pool, size_t index) {
  bench::Random random(seed * 100000 + index);
  for (uint64_t i = 0; i < ops; ++i) {
    const size_t victim = random.below(slots);
    const size_t size = random.between(min_size, max_size);
    free(pool[victim]);
    pool[victim] = bench::must_malloc(size);
    bench::touch_ends(pool[victim], size);
  }
  for (size_t i = 0; i < slots; ++i) free(pool[i]);
}

// So that stack pages that the work touches for the first time are not taken for the allocator's.
[[gnu::noinline]] void touch_stack() {
  constexpr size_t kStackBytes = 16 * 1024;
  bench::touch_pages(alloca(kStackBytes), kStackBytes);
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &ops, &slots, &min_size, &max_size, &idle, &seed});
  if (threads == 0 || slots == 0 || min_size == 0 || min_size > max_size)
    bench::die("%s: threads, slots and min must be at least 1, and min at most max", argv[0]);
  void **pools = bench::map_array<void *>(threads * slots);
  bench::Barrier step(threads + 1);
  bench::Threads workers(threads, [&](size_t i) {
    touch_stack();
    step.wait();  // all exist
    step.wait();  // the baseline is taken
    work(pools + i * slots, i);
    step.wait();  // all have worked
    step.wait();  // the main thread has looked
  });
  step.wait();
  const uint64_t before = bench::rss_bytes();
  const uint64_t begin = bench::now_ns();
  step.wait();
  step.wait();
  const double seconds = bench::seconds_since(begin);
  const uint64_t at_once = bench::rss_bytes();
  bench::sleep_ms(idle * 1000);
  const uint64_t later = bench::rss_bytes();
  step.wait();
  workers.join();
  const auto per_thread = [&](uint64_t rss) {
    return (static_cast<double>(rss) - static_cast<double>(before)) / static_cast<double>(threads);
  };
  bench::Json("idle_threads")
      .speed(seconds, threads * ops)
      .param(threads)
      .param(ops)
      .count("rss_before_bytes", before)
      .number("bytes_per_thread_at_once", per_thread(at_once))
      .number("bytes_per_thread_after_idle", per_thread(later))
      .param(idle)
      .print();
}
