// thread_churn: threads that live for a few hundred mallocs.
//
// Source: servers with a thread for each connection, and programs that start threads for small tasks. Larson and
// Krishnan's test (ISMM 1998) starts threads too, but each does ten million replacements before it ends.
//
// Stresses: what an allocator does at a thread's first malloc and at its end, and whether the memory of ended threads
// serves later ones. Each thread allocates `ops` objects, frees those that its predecessor passed on to it, passes on
// the last `pass` of its own, frees the rest, and ends. So `lanes` threads exist at a time, and `threads` in all.
//
// Reported: microseconds for a thread, start and join included, and peak memory by what is held at most.

#include "bench.h"
#include "marks.h"

namespace {

using bench::Param;

Param threads{"threads", 8000, "short threads in all"};
Param lanes{"lanes", 2, "threads that exist at a time"};
Param ops{"ops", 300, "objects that each allocates"};
Param pass{"pass", 30, "objects that each passes on to its successor"};
Param min_size{"min", 16, "smallest size (at least 12)"};
Param max_size{"max", 1024, "largest size"};
Param seed{"seed", 1, "of the sizes"};

// What a lane's threads hand on to each other. Only one of them is alive.
struct alignas(128) Lane {
  bench::Ledger ledger;
  bench::Random random{0};
  void **objects;
  void **passed;
  uint64_t generations;
};

void *live_shortly(void *argument) {
  Lane *lane = static_cast<Lane *>(argument);
  for (size_t i = 0; i < ops; ++i) lane->objects[i] = lane->ledger.allocate(lane->random.between(min_size, max_size));
  for (size_t i = 0; i < pass; ++i) {
    if (lane->passed[i] != nullptr) lane->ledger.release(lane->passed[i]);
    lane->passed[i] = lane->objects[ops - 1 - i];
  }
  for (size_t i = 0; i < ops - pass; ++i) lane->ledger.release(lane->objects[i]);
  ++lane->generations;
  return nullptr;
}

void run(Lane *lane, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    pthread_t id;
    const int error = pthread_create(&id, nullptr, live_shortly, lane);
    if (error != 0) bench::die("cannot start a thread: %s", strerror(error));
    pthread_join(id, nullptr);
  }
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &lanes, &ops, &pass, &min_size, &max_size, &seed});
  if (lanes == 0 || ops == 0 || pass > ops || min_size < bench::kMinMarked || min_size > max_size)
    bench::die("%s: lanes and ops must be at least 1, pass at most ops, min at least 12 and at most max", argv[0]);
  Lane *all = bench::map_array<Lane>(lanes);
  void **objects = bench::map_array<void *>(lanes * (ops + pass));
  for (size_t i = 0; i < lanes; ++i) {
    all[i].random = bench::Random(seed * 1000 + i);
    all[i].objects = objects + i * (ops + pass);
    all[i].passed = all[i].objects + ops;
  }
  const uint64_t share = threads / lanes;
  bench::Barrier ready(lanes + 1), start(lanes + 1);
  bench::Threads workers(lanes, [&](size_t i) {
    ready.wait();
    start.wait();
    run(&all[i], share);
  });
  ready.wait();
  const uint64_t before = bench::rss_bytes();
  const uint64_t begin = bench::now_ns();
  start.wait();
  workers.join();
  const double seconds = bench::seconds_since(begin);
  const uint64_t after = bench::rss_bytes();
  uint64_t started = 0;
  for (size_t i = 0; i < lanes; ++i) {
    started += all[i].generations;
    for (size_t n = 0; n < pass; ++n) {
      if (all[i].passed[n] != nullptr) all[i].ledger.release(all[i].passed[n]);
    }
    bench::Ledger::must_balance(&all[i].ledger, 1);
  }
  if (started != share * lanes) bench::die("not all threads have run");
  bench::Json("thread_churn")
      .speed(seconds, started * ops)
      .number("us_per_thread", seconds * 1e6 * static_cast<double>(lanes) / static_cast<double>(started))
      .param(threads)
      .param(lanes)
      .param(ops)
      .param(pass)
      .count("grown_bytes", after > before ? after - before : 0)
      .print();
}
