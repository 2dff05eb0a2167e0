// nalloc_tests: the three tests of a lock-free allocator, the second and third without their flaw.
//
// Source: Podolsky, "nalloc: A Lock-Free Memory Allocator", CMU 15-418 project report, 2013. Objects are of at most
// 1024 bytes and are written; the work is the same whatever the number of threads; the bytes that a thread may hold are
// limited.
//
// test=1: each thread allocates or frees, at random, in a private pool. Stresses the paths of one thread.
// test=2: threads allocate into a global pool and free from it. Stresses objects that migrate in all directions.
// test=3: one thread allocates, all others free. Stresses caches that only run dry or only run over.
//
// The author calls the second and third flawed: three quarters of the time went into the pool's lock-free stacks, and
// they should be rewritten so that blocks are transferred less often. So here a pool holds batches of `batch` objects:
// in test 2 one atomic exchange moves a batch, in test 3 the bounded queue of malloc_test.cc does. What the pool costs
// in test 2 is reported (pool_percent).

#include "batch_queue.h"
#include "bench.h"
#include "marks.h"

namespace {

using bench::Param;

Param test{"test", 1, "1: private pools, 2: a global pool, 3: one producer"};
Param threads{"threads", 2, "threads (test 3: at least 2)"};
Param ops{"ops", 20000000, "objects allocated in all"};
Param limit{"limit", 8u << 20, "bytes that a thread may hold (test 1)"};
Param batch{"batch", 1024, "objects a batch (tests 2 and 3)"};
Param pool{"pool", 8, "batches in the global pool for each thread (tests 2 and 3)"};
Param max_size{"max", 1024, "largest size"};
Param seed{"seed", 1, "of everything random"};

constexpr size_t kQueueWake = 4;

void *allocate(bench::Ledger *ledger, bench::Random *random) {
  const size_t size = random->between(bench::kMinMarked, max_size);
  void *object = bench::must_malloc(size);
  memset(object, 'n', size);
  ledger->enter(object, size);
  return object;
}

// What one thread has and reports.
struct alignas(128) Worker {
  bench::Random random{0};
  uint64_t pool_ns;
};

struct alignas(128) Slot {
  std::atomic<bench::Batch *> batch;
};

struct Test {
  bench::Ledger *ledgers;
  Worker *workers;
  Slot *slots = nullptr;  // of test 2
  size_t slot_count = 0;
  bench::BatchQueue *queue = nullptr;  // of test 3
  uint64_t share = 0;                  // objects or batches for each thread that allocates
};

// A coin says whether to allocate or to free; at the limits there is no choice.
void use_private_pool(Test *t, size_t index) {
  bench::Random *random = &t->workers[index].random;
  bench::Ledger *ledger = &t->ledgers[index];
  const size_t capacity = limit / bench::kMinMarked + 1;
  void **objects = bench::map_array<void *>(capacity);
  size_t count = 0;
  for (uint64_t done = 0; done < t->share;) {
    const bool heads = (random->next() >> 63) != 0;
    if (count == 0 || (heads && ledger->bytes() + max_size <= limit)) {
      objects[count++] = allocate(ledger, random);
      ++done;
    } else {
      const size_t victim = random->below(count);
      ledger->release(objects[victim]);
      objects[victim] = objects[--count];
    }
  }
  while (count != 0) ledger->release(objects[--count]);
  bench::unmap_array(objects, capacity);
}

void fill(bench::Batch *b, bench::Ledger *ledger, bench::Random *random) {
  for (size_t i = 0; i < batch; ++i) b->objects[i] = allocate(ledger, random);
}

// An empty batch has null in its first place.
void empty(bench::Batch *b, bench::Ledger *ledger) {
  if (b->objects[0] == nullptr) return;
  for (size_t i = 0; i < batch; ++i) ledger->release(b->objects[i]);
  b->objects[0] = nullptr;
}

void use_global_pool(Test *t, size_t index, bench::Batch *own) {
  Worker *worker = &t->workers[index];
  bench::Ledger *ledger = &t->ledgers[index];
  for (uint64_t n = 0; n < t->share; ++n) {
    fill(own, ledger, &worker->random);
    const uint64_t begin = bench::now_ns();
    own = t->slots[worker->random.below(t->slot_count)].batch.exchange(own, std::memory_order_acq_rel);
    worker->pool_ns += bench::now_ns() - begin;
    empty(own, ledger);
  }
}

void produce_or_consume(Test *t, size_t index) {
  bench::Ledger *ledger = &t->ledgers[index];
  bench::Batch *b = t->queue->take_empty();
  if (index == 0) {
    for (uint64_t n = 0; n < t->share; ++n) {
      fill(b, ledger, &t->workers[0].random);
      b = t->queue->push(b);
    }
  } else {
    while ((b = t->queue->pop(b)) != nullptr) empty(b, ledger);
  }
}

// Runs `body(index)` in all threads at once and returns the seconds that it took.
template <class Body>
double run(Body body) {
  bench::Barrier start(threads + 1);
  bench::Threads running(threads, [&](size_t i) {
    start.wait();
    body(i);
  });
  return bench::run(&start, &running);
}

double run_global_pool(Test *t) {
  t->share = ops / threads / batch;
  t->slot_count = threads * pool;
  t->slots = bench::map_array<Slot>(t->slot_count);
  const size_t count = t->slot_count + threads;
  bench::Batch *batches = bench::map_array<bench::Batch>(count);
  void **objects = bench::map_array<void *>(count * batch);
  for (size_t i = 0; i < count; ++i) {
    batches[i].objects = objects + i * batch;
    if (i < t->slot_count) t->slots[i].batch = &batches[i];
  }
  const double seconds = run([&](size_t i) { use_global_pool(t, i, &batches[t->slot_count + i]); });
  for (size_t i = 0; i < count; ++i) empty(&batches[i], &t->ledgers[0]);
  return seconds;
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&test, &threads, &ops, &limit, &batch, &pool, &max_size, &seed});
  if (test < 1 || test > 3 || threads == 0 || (test == 3 && threads == 1))
    bench::die("%s: test is 1 to 3, threads at least 1, in test 3 at least 2", argv[0]);
  if (batch == 0 || pool < kQueueWake || max_size < bench::kMinMarked || limit < max_size)
    bench::die("%s: batch is at least 1, pool 4, max 12, and limit at least max", argv[0]);
  Test t{bench::map_array<bench::Ledger>(threads), bench::map_array<Worker>(threads)};
  for (size_t i = 0; i < threads; ++i) t.workers[i].random = bench::Random(seed * 1000 + i);
  double seconds;
  uint64_t done;
  if (test == 1) {
    t.share = ops / threads;
    done = t.share * threads;
    seconds = run([&](size_t i) { use_private_pool(&t, i); });
  } else if (test == 2) {
    seconds = run_global_pool(&t);
    done = t.share * threads * batch;
  } else {
    t.share = ops / batch;
    done = t.share * batch;
    bench::BatchQueue queue({threads * pool, kQueueWake, batch}, threads, t.share);
    t.queue = &queue;
    seconds = run([&](size_t i) { produce_or_consume(&t, i); });
  }
  bench::Ledger::must_balance(t.ledgers, threads);
  uint64_t pool_ns = 0;
  for (size_t i = 0; i < threads; ++i) pool_ns += t.workers[i].pool_ns;
  bench::Json("nalloc_tests")
      .speed(seconds, done)
      .param(test)
      .param(threads)
      .param(max_size)
      .number("pool_percent", 1e-7 * static_cast<double>(pool_ns) / (seconds * static_cast<double>(threads)))
      .print();
}
