// malloc-test: producers allocate, consumers free.
//
// Source: Lever and Boreham's test (2000) in the form of Kuszmaul, "SuperMalloc", ISMM 2015, section 9: whole batches
// of 4096 objects go through a bounded queue under a condition variable, so that the queue costs nothing beside the
// objects and the test does not spin. Sizes of 8 to 2048 bytes: Lietar et al., "snmalloc", ISMM 2019, section 3.1.
//
// Stresses: caches that only ever run dry (producers) or over (consumers); every object crosses threads.
//
// The number of objects is fixed, so a faster allocator has a shorter time, not more work. The batches themselves are
// recycled and come from mmap: only the objects are the allocator's. One thing is not as in the paper: a thread that
// sleeps is woken for `wake` batches, not for one (wake=1). With one, a fast allocator's threads sleep and wake at
// every batch, and it is chance whether the scheduler runs them on one CPU or on two: with a malloc that does nothing,
// 50 or 165 million objects a second were measured in turn; with wake=8 always about 170 (2 CPUs, queue=16).
//
// With touch=1 producers write the first byte of each object and consumers check it; with touch=2 producers write the
// whole object.

#include "batch_queue.h"
#include "bench.h"

namespace {

using bench::Param;

Param pairs{"pairs", 1, "producers, and as many consumers"};
Param total{"objects", 30000000, "objects in all"};
Param batch{"batch", 4096, "objects a batch"};
Param queue{"queue", 100, "batches that the queue holds"};
Param wake{"wake", 8, "batches that must come or go to wake who sleeps"};
Param size{"size", 64, "bytes an object; 0: random between min and max"};
Param min_size{"min", 8, "smallest random size"};
Param max_size{"max", 2048, "largest random size"};
Param touch{"touch", 0, "0: no byte, 1: the first, 2: all"};
Param seed{"seed", 1, "of the sizes"};

// Parameters in locals: malloc and free could change a global, and reading it again would cost as much as they do.
void produce(bench::BatchQueue *q, size_t index, uint64_t batches) {
  const size_t count = batch, fixed = size, low = min_size, high = max_size;
  const uint64_t how = touch;
  bench::Random random(seed * 1000 + index);
  bench::Batch *b = q->take_empty();
  for (uint64_t n = 0; n < batches; ++n) {
    void **objects = b->objects;
    for (size_t i = 0; i < count; ++i) {
      const size_t bytes = fixed != 0 ? fixed : random.between(low, high);
      char *object = static_cast<char *>(bench::must_malloc(bytes));
      if (how == 1) *object = 'm';
      if (how == 2) memset(object, 'm', bytes);
      objects[i] = object;
    }
    b = q->push(b);
  }
}

void consume(bench::BatchQueue *q) {
  const size_t count = batch;
  const bool check = touch != 0;
  bench::Batch *b = q->take_empty();
  while ((b = q->pop(b)) != nullptr) {
    void **objects = b->objects;
    for (size_t i = 0; i < count; ++i) {
      if (check && *static_cast<char *>(objects[i]) != 'm') bench::die("an object lost its contents");
      free(objects[i]);
    }
  }
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&pairs, &total, &batch, &queue, &wake, &size, &min_size, &max_size, &touch, &seed});
  if (wake == 0 || (wake > 1 && wake > queue / 2)) bench::die("%s: wake is 1 to half of queue", argv[0]);
  if (pairs == 0 || batch == 0 || min_size == 0 || min_size > max_size)
    bench::die("%s: pairs, batch and min must be at least 1, and min at most max", argv[0]);
  const uint64_t share = (total + pairs * batch - 1) / (pairs * batch);  // batches of each producer
  const size_t workers = 2 * pairs;
  bench::BatchQueue q({queue, wake, batch}, workers, share * pairs);
  bench::Barrier start(workers + 1);
  bench::Threads threads(workers, [&](size_t i) {
    start.wait();
    if (i % 2 == 0) produce(&q, i, share);
    if (i % 2 == 1) consume(&q);
  });
  const double seconds = bench::run(&start, &threads);
  bench::Json("malloc_test")
      .speed(seconds, share * pairs * batch)
      .param(pairs)
      .count("objects", share * pairs * batch)
      .param(size)
      .param(touch)
      .count("queue_peak_batches", q.peak_length())
      .print();
}
