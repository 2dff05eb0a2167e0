// random_lifetimes: random sizes, random lifetimes, each thread for itself.
//
// Source: the first benchmark of Podolsky's nalloc report (CMU 15-418, 2013): each thread randomly allocates, writes
// and frees objects of at most 1 KiB in a private pool. Here a pool is an array of slots; each step replaces the object
// of a random slot, so the lifetimes are geometrically distributed.
//
// Stresses: the paths of one thread without any traffic between threads: size to bin, fragmentation, cache misses.

#include "bench.h"

namespace {

using bench::Param;

Param threads{"threads", 1, "threads, each with its own slots"};
Param ops{"ops", 20000000, "replacements in all"};
Param slots{"slots", 10000, "live objects a thread"};
Param max_size{"max", 1024, "largest size"};
Param seed{"seed", 1, "of the sizes and victims"};

void replace(void **pool, size_t index, uint64_t count) {
  bench::Random random(seed * 1000 + index);
  for (uint64_t i = 0; i < count; ++i) {
    const size_t victim = random.below(slots);
    const size_t size = random.between(1, max_size);
    free(pool[victim]);
    char *object = static_cast<char *>(bench::must_malloc(size));
    *object = 'r';
    pool[victim] = object;
  }
  for (size_t i = 0; i < slots; ++i) free(pool[i]);
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &ops, &slots, &max_size, &seed});
  if (threads == 0 || slots == 0 || max_size == 0) bench::die("%s: threads, slots and max must be at least 1", argv[0]);
  void **pools = bench::map_array<void *>(threads * slots);
  const uint64_t share = ops / threads;
  double seconds;
  if (threads == 1) {  // in the main thread: some allocators are faster before the first pthread_create
    const uint64_t begin = bench::now_ns();
    replace(pools, 0, share);
    seconds = bench::seconds_since(begin);
  } else {
    bench::Barrier start(threads + 1);
    bench::Threads workers(threads, [&](size_t i) {
      start.wait();
      replace(pools + i * slots, i, share);
    });
    seconds = bench::run(&start, &workers);
  }
  bench::Json("random_lifetimes").speed(seconds, share * threads).param(threads).param(slots).param(max_size).print();
}
