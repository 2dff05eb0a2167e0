// burst_idle: several threads have a burst of work, again and again, and then nothing to do. What stays resident?
//
// Source: services with peaks, whose memory after a peak is that of the peak. burst.cc has the plain case, one burst in
// which each thread frees what it allocated; here objects die in other threads, sizes are up to 64 KiB, the bursts
// before the last have left the caches as they are in a process that has run for a while, and the threads are idle, not
// ended.
//
// Stresses: giving memory back from several threads' caches while nobody calls the allocator.
//
// In each burst every thread allocates its share of `bytes`, with each power of two equally likely, touches all pages,
// and frees the share of the thread after it. Reported: resident memory above what was there before, in percent of the
// bytes that were live: at the burst, and 0.5, 1, 2 and 5 seconds after the work was gone (`idle` ends it earlier).

#include "bench.h"
#include "marks.h"

namespace {

using bench::Param;

Param threads{"threads", 4, "threads"};
Param bytes{"bytes", 256u << 20, "live bytes of a burst"};
Param bursts{"bursts", 8, "bursts; the last is watched"};
Param min_size{"min", 16, "smallest size (at least 12)"};
Param max_size{"max", 64u << 10, "largest size"};
Param idle_ms{"idle_ms", 5000, "milliseconds to watch"};
Param seed{"seed", 1, "of the sizes"};

struct alignas(128) Share {
  bench::Random random{0};
  void **objects;
  size_t count;
};

struct Burst {
  Share *shares;
  bench::Ledger *ledgers;
};

void allocate(const Burst &burst, size_t index, size_t capacity) {
  Share *share = &burst.shares[index];
  share->count = 0;
  for (uint64_t held = 0; held < bytes / threads;) {
    if (share->count == capacity) bench::die("more objects than expected");
    const size_t size = bench::log_uniform(&share->random, min_size, max_size);
    void *object = burst.ledgers[index].allocate(size);
    for (size_t at = 4096; at < size - 4; at += 4096) static_cast<volatile char *>(object)[at] = 'b';
    share->objects[share->count++] = object;
    held += size;
  }
}

void release(const Burst &burst, size_t index) {
  Share *share = &burst.shares[(index + 1) % threads];
  for (size_t i = 0; i < share->count; ++i) burst.ledgers[index].release(share->objects[i]);
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &bytes, &bursts, &min_size, &max_size, &idle_ms, &seed});
  if (threads == 0 || bursts == 0 || min_size < bench::kMinMarked || min_size > max_size || bytes < threads)
    bench::die("%s: threads and bursts must be at least 1, min at least 12 and at most max", argv[0]);
  // The mean size is above max / 2 / powers; so many objects are never needed but for very small bursts.
  const size_t capacity = bytes / threads / (max_size / 64 + min_size / 2) + 4096;
  void **objects = bench::map_array<void *>(capacity * threads);
  Burst burst{bench::map_array<Share>(threads), bench::map_array<bench::Ledger>(threads)};
  bench::Barrier step(threads + 1);
  bench::Threads workers(threads, [&](size_t i) {
    burst.shares[i].random = bench::Random(seed * 1000 + i);
    burst.shares[i].objects = objects + i * capacity;
    step.wait();  // all exist
    for (size_t n = 0; n < bursts; ++n) {
      step.wait();
      allocate(burst, i, capacity);
      step.wait();  // all have allocated
      step.wait();
      release(burst, i);
      step.wait();  // all have freed
    }
    step.wait();  // the main thread has watched
  });
  step.wait();
  const uint64_t before = bench::rss_bytes();
  uint64_t live = 0, full = 0;
  double seconds = 0;
  for (size_t n = 0; n < bursts; ++n) {
    uint64_t begin = bench::now_ns();
    step.wait();
    step.wait();
    seconds += bench::seconds_since(begin);
    live = bench::Ledger::live_bytes(burst.ledgers, threads);
    full = bench::rss_bytes();
    begin = bench::now_ns();
    step.wait();
    step.wait();
    seconds += bench::seconds_since(begin);
  }
  const uint64_t gone = bench::now_ns();
  bench::Json json("burst_idle");
  const auto percent = [&](const char *name, uint64_t rss) {
    json.number(name, rss > before ? 100 * static_cast<double>(rss - before) / static_cast<double>(live) : 0.0);
  };
  percent("burst_percent", full);
  percent("after_0ms_percent", bench::rss_bytes());
  for (const uint64_t ms : {500, 1000, 2000, 5000}) {
    if (ms > idle_ms) break;
    const uint64_t past = (bench::now_ns() - gone) / 1000000;
    if (past < ms) bench::sleep_ms(ms - past);
    char name[32];
    snprintf(name, sizeof(name), "after_%ums_percent", static_cast<unsigned>(ms));
    percent(name, bench::rss_bytes());
  }
  step.wait();
  workers.join();
  bench::Ledger::must_balance(burst.ledgers, threads);
  json.number("seconds", seconds).param(threads).param(bursts).count("live_bytes", live).print();
}
