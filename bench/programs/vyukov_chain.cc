// vyukov_chain: each thread frees what the one before it allocated, then allocates the same again.
//
// Source: Vyukov's test as configured by Kuszmaul, "SuperMalloc", ISMM 2015, section 9: 200 threads, 50,000 objects of
// random size below 4 KiB each. At no time does the program hold more than about 100 MiB.
//
// Stresses: memory blow-up. A cache that keeps what its thread has freed, or a heap that only its own thread can
// allocate from, is left behind by each of the 200 threads: at worst 200 times what the program ever held.
//
// All threads exist until the end (stay=1, the hard variant, in which nothing is handed on by the end of a thread) or
// end after their turn (stay=0). Reports peak resident memory by what the test itself holds at most. Some allocators
// need more than 20 GiB: the chain ends early, with "gave_up": 1, above `limit` or half of the machine's memory.

#include <condition_variable>
#include <mutex>

#include "bench.h"

namespace {

using bench::Param;

Param threads{"threads", 200, "threads in the chain"};
Param objects{"objects", 50000, "objects of each"};
Param max_size{"max", 4095, "largest size"};
Param stay{"stay", 1, "1: threads exist until the end; 0: they end after their turn"};
Param touch{"touch", 1, "1: first and last byte of each object; 2: all bytes"};
Param limit{"limit", uint64_t{8} << 30, "resident bytes at which it gives up"};
Param seed{"seed", 1, "of the sizes"};

class Turns {
 public:
  void wait_for(uint64_t turn) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (turn_ < turn) changed_.wait(lock);
  }
  void pass() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++turn_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t turn_ = 0;
};

struct Chain {
  void **objects;
  uint64_t live_bytes = 0, peak_live_bytes = 0;
  uint64_t turns = 0;
  bool gave_up = false;
};

uint64_t bytes_to_give_up_at() {
  const uint64_t half =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
  return limit < half ? limit : half;
}

void take_turn(Chain *chain, size_t index) {
  bench::Random random(seed * 1000 + index);
  for (size_t i = 0; i < objects; ++i) free(chain->objects[i]);
  chain->live_bytes = 0;
  for (size_t i = 0; i < objects; ++i) {
    const size_t size = random.between(1, max_size);
    void *object = bench::must_malloc(size);
    if (touch == 2) {
      memset(object, 'v', size);
    } else {
      bench::touch_ends(object, size);
    }
    chain->objects[i] = object;
    chain->live_bytes += size;
  }
  ++chain->turns;
  if (chain->live_bytes > chain->peak_live_bytes) chain->peak_live_bytes = chain->live_bytes;
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &objects, &max_size, &stay, &touch, &limit, &seed});
  if (threads == 0 || objects == 0 || max_size == 0)
    bench::die("%s: threads, objects and max must be at least 1", argv[0]);
  Chain chain{bench::map_array<void *>(objects)};
  Turns turns;
  const uint64_t give_up_bytes = bytes_to_give_up_at();
  bench::Barrier ready(threads + 1);
  bench::Threads workers(threads, [&](size_t i) {
    ready.wait();
    turns.wait_for(i);
    if (!chain.gave_up) take_turn(&chain, i);
    if (bench::peak_rss_bytes() > give_up_bytes) chain.gave_up = true;
    turns.pass();
    if (stay != 0) turns.wait_for(threads);
  });
  const uint64_t before = bench::rss_bytes();
  ready.wait();
  const uint64_t begin = bench::now_ns();
  turns.wait_for(threads);
  const double seconds = bench::seconds_since(begin);
  const uint64_t peak = bench::peak_rss_bytes();
  workers.join();
  bench::Json("vyukov_chain")
      .speed(seconds, chain.turns * objects)
      .param(threads)
      .param(objects)
      .param(stay)
      .count("gave_up", chain.gave_up ? 1 : 0)
      .count("live_peak_bytes", chain.peak_live_bytes)
      .count("rss_before_bytes", before)
      .number("peak_by_live", static_cast<double>(peak) / static_cast<double>(chain.peak_live_bytes))
      .print();
}
