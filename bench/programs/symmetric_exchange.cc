// symmetric_exchange: each thread allocates an object, swaps it for one of another thread, and frees what it received.
//
// Source: the symmetric workload of Lietar et al., "snmalloc: a message passing allocator", ISMM 2019, section 3.1. The
// paper does not say how objects are swapped: here they lie in slots that all threads share, and a swap is an atomic
// exchange of a random slot. With n threads, n-1 of n objects that come back are another's.
//
// Stresses: remote frees at the same rate as allocations: what a thread frees it can use again, unless the allocator
// sends it home. Best for thread caches.
//
// The paper divides peak memory by the peak length of the queue (section 3.1, figure 7b), because a fast allocator must
// not look wasteful for being far ahead. So here: peak memory above what was resident before the work, by the bytes
// that the program held at most (the first thread looks every 1024 swaps).

#include "bench.h"
#include "marks.h"

namespace {

using bench::Param;

Param threads{"threads", 2, "threads"};
Param ops{"ops", 30000000, "swaps in all"};
Param slots{"slots", 8192, "slots for each thread; any thread uses all"};
Param size{"size", 0, "bytes an object; 0: random between min and max"};
Param min_size{"min", 16, "smallest random size"};
Param max_size{"max", 1024, "largest random size"};
Param seed{"seed", 1, "of the sizes and slots"};

constexpr uint64_t kPollEvery = 1024;

struct Exchange {
  std::atomic<void *> *slots;
  size_t slot_count;
  bench::Ledger *ledgers;
  bench::Peak live;
};

void swap_objects(Exchange *exchange, size_t index, uint64_t count) {
  const size_t fixed = size, low = min_size, high = max_size;
  bench::Random random(seed * 1000 + index);
  bench::Ledger *own = &exchange->ledgers[index];
  for (uint64_t i = 0; i < count; ++i) {
    const size_t bytes = fixed != 0 ? fixed : random.between(low, high);
    void *sent = own->allocate(bytes);
    void *received = exchange->slots[random.below(exchange->slot_count)].exchange(sent, std::memory_order_acq_rel);
    if (received != nullptr) own->release(received);
    if (index == 0 && i % kPollEvery == 0) exchange->live.note(bench::Ledger::live_bytes(exchange->ledgers, threads));
  }
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &ops, &slots, &size, &min_size, &max_size, &seed});
  const size_t smallest = size != 0 ? size : min_size;
  if (threads == 0 || slots == 0 || smallest < bench::kMinMarked || min_size > max_size)
    bench::die("%s: threads and slots must be at least 1, sizes at least 12, and min at most max", argv[0]);
  Exchange exchange{bench::map_array<std::atomic<void *>>(threads * slots),
                    threads * slots,
                    bench::map_array<bench::Ledger>(threads),
                    {}};
  const uint64_t share = ops / threads;
  bench::Barrier start(threads + 1), ready(threads + 1);
  bench::Threads workers(threads, [&](size_t i) {
    ready.wait();
    start.wait();
    swap_objects(&exchange, i, share);
  });
  ready.wait();
  const uint64_t before = bench::rss_bytes();
  const uint64_t begin = bench::now_ns();
  start.wait();
  workers.join();
  const double seconds = bench::seconds_since(begin);
  exchange.live.note(bench::Ledger::live_bytes(exchange.ledgers, threads));
  const double by_live = bench::peak_by_live(before, exchange.live.value);
  for (size_t i = 0; i < exchange.slot_count; ++i) {
    void *left = exchange.slots[i].load(std::memory_order_relaxed);
    if (left != nullptr) exchange.ledgers[0].release(left);
  }
  bench::Ledger::must_balance(exchange.ledgers, threads);
  bench::Json("symmetric_exchange")
      .speed(seconds, share * threads)
      .param(threads)
      .param(slots)
      .param(size)
      .count("live_peak_bytes", exchange.live.value)
      .number("peak_by_live", by_live)
      .print();
}
