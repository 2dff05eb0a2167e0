// warm_up: how long does a malloc take to reach its full speed?
//
// Source: Lietar et al., "snmalloc: a message passing allocator", ISMM 2019, section 3.1, "Warmup Time" and figure 8:
// the producer/consumer test over increasing durations, because one allocator was much faster in longer runs. Here one
// run is cut into slots of 10 ms by the time at which batches of objects have been freed. Full speed is the median
// of the slots of the last half; reported is the end of the first slot that has 95 % of it.
//
// Stresses: what happens in the first milliseconds: first use of threads, caches that grow, page faults.
//
// The work is that of malloc_test.cc: producers allocate batches of objects of 8 to 2048 bytes, consumers check the
// first byte of each and free it. Batches are of 512 objects, not 4096, so that a slot has many even if malloc is slow.
// With show=1 the slots are printed before the result, one a line.

#include <algorithm>

#include "batch_queue.h"
#include "bench.h"

namespace {

using bench::Param;

Param pairs{"pairs", 1, "producers, and as many consumers"};
Param total{"objects", 8000000, "objects in all"};
Param size{"size", 0, "bytes an object; 0: random between min and max"};
Param min_size{"min", 8, "smallest random size"};
Param max_size{"max", 2048, "largest random size"};
Param slot_ms{"slot_ms", 10, "milliseconds a slot"};
Param show{"show", 0, "1: print the slots"};
Param seed{"seed", 1, "of the sizes"};

constexpr size_t kBatch = 512, kQueue = 128, kWake = 8;
constexpr size_t kSlots = 16384;
constexpr double kFull = 0.95;

void produce(bench::BatchQueue *q, size_t index, uint64_t batches) {
  const size_t fixed = size, low = min_size, high = max_size;
  bench::Random random(seed * 1000 + index);
  bench::Batch *b = q->take_empty();
  for (uint64_t n = 0; n < batches; ++n) {
    void **objects = b->objects;
    for (size_t i = 0; i < kBatch; ++i) {
      char *object = static_cast<char *>(bench::must_malloc(fixed != 0 ? fixed : random.between(low, high)));
      *object = 'w';
      objects[i] = object;
    }
    b = q->push(b);
  }
}

// Counts in `freed` the objects of each slot of time; what comes after the last slot counts there.
void consume(bench::BatchQueue *q, const uint64_t *begin, uint64_t *freed) {
  const uint64_t slot_ns = slot_ms * 1000000;
  bench::Batch *b = q->take_empty();
  while ((b = q->pop(b)) != nullptr) {
    void **objects = b->objects;
    for (size_t i = 0; i < kBatch; ++i) {
      if (*static_cast<char *>(objects[i]) != 'w') bench::die("an object lost its contents");
      free(objects[i]);
    }
    const uint64_t slot = (bench::now_ns() - *begin) / slot_ns;
    freed[slot < kSlots ? slot : kSlots - 1] += kBatch;
  }
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&pairs, &total, &size, &min_size, &max_size, &slot_ms, &show, &seed});
  if (pairs == 0 || min_size == 0 || min_size > max_size || slot_ms == 0)
    bench::die("%s: pairs, min and slot_ms must be at least 1, and min at most max", argv[0]);
  const uint64_t share = (total + pairs * kBatch - 1) / (pairs * kBatch);
  const size_t workers = 2 * pairs;
  bench::BatchQueue q({kQueue, kWake, kBatch}, workers, share * pairs);
  uint64_t *freed = bench::map_array<uint64_t>(pairs * kSlots);
  uint64_t begin = 0;
  bench::Barrier ready(workers + 1), start(workers + 1);
  bench::Threads threads(workers, [&](size_t i) {
    ready.wait();
    start.wait();
    if (i % 2 == 0) produce(&q, i, share);
    if (i % 2 == 1) consume(&q, &begin, freed + i / 2 * kSlots);
  });
  ready.wait();
  begin = bench::now_ns();
  start.wait();
  threads.join();
  const double seconds = bench::seconds_since(begin);
  uint64_t sum = 0;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    for (size_t i = 1; i < pairs; ++i) freed[slot] += freed[i * kSlots + slot];
    sum += freed[slot];
  }
  if (sum != share * pairs * kBatch) bench::die("not as many objects were freed as allocated");
  const size_t used = static_cast<size_t>(seconds * 1e3 / static_cast<double>(slot_ms));  // whole slots
  if (used < 4 || used >= kSlots) bench::die("%zu slots: too few or too many, change objects or slot_ms", used);
  const size_t half = used / 2;
  uint64_t *late = bench::map_array<uint64_t>(used - half);
  std::copy(freed + half, freed + used, late);
  std::nth_element(late, late + (used - half) / 2, late + (used - half));
  const double full = static_cast<double>(late[(used - half) / 2]);
  if (full == 0) bench::die("nothing was freed in most slots: choose a larger slot_ms");
  size_t warm = 0;
  while (static_cast<double>(freed[warm]) < kFull * full) ++warm;
  const double slot_seconds = static_cast<double>(slot_ms) * 1e-3;
  if (show != 0) {
    for (size_t slot = 0; slot < used; ++slot)
      printf("%7.0f ms  %8.2f million/s\n", static_cast<double>(slot * slot_ms),
             static_cast<double>(freed[slot]) / slot_seconds * 1e-6);
    fflush(stdout);
  }
  bench::Json("warm_up")
      .speed(seconds, sum)
      .param(pairs)
      .param(size)
      .number("warm_after_seconds", static_cast<double>(warm + 1) * slot_seconds)
      .number("full_ops_per_second", full / slot_seconds)
      .number("first_slot_by_full", static_cast<double>(freed[0]) / full)
      .print();
}
