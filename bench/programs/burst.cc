// burst: a gibibyte of small objects is allocated, freed, and then the program is idle. What stays resident?
//
// Source: the complaint that users of every allocator bring most often: resident memory stays high after free, and
// memory is only given back by programs that go on calling the allocator. Kuszmaul, "SuperMalloc", ISMM 2015, section
// 9 measures the footprint of running programs only.
//
// Stresses: giving memory back, at once and with time, with no call to the allocator in between. With threads=1 the
// process has one thread all the time, so nothing can happen behind its back; otherwise `threads` threads take a share
// each and wait, alive and idle. order=random frees in random order, which empties no page before nearly the end.

#include "bench.h"

namespace {

using bench::Param;

constexpr uint64_t kMaxIdle = 60;

Param bytes{"bytes", 1u << 30, "requested bytes in all"};
Param min_size{"min", 16, "smallest size"};
Param max_size{"max", 512, "largest size"};
Param threads{"threads", 1, "threads that take a share each"};
Param shuffle{"random", 0, "1: free in random order; 0: in the order of allocation"};
Param idle{"idle", 5, "seconds to stay idle and watch"};
Param seed{"seed", 1, "of the sizes and the order"};

struct Share {
  void **objects;
  size_t count = 0;
  uint64_t bytes = 0;
};

size_t capacity_of(uint64_t share_bytes) { return share_bytes / ((min_size + max_size) / 2) * 5 / 4 + 1024; }

void allocate(Share *share, uint64_t share_bytes, bench::Random *random) {
  const size_t capacity = capacity_of(share_bytes);
  while (share->bytes < share_bytes && share->count < capacity) {
    const size_t size = random->between(min_size, max_size);
    void *object = bench::must_malloc(size);
    bench::touch_ends(object, size);
    share->objects[share->count++] = object;
    share->bytes += size;
  }
}

void free_all(Share *share, bench::Random *random) {
  if (shuffle != 0) bench::shuffle(share->objects, share->count, random);
  for (size_t i = 0; i < share->count; ++i) free(share->objects[i]);
}

struct Result {
  uint64_t live_bytes = 0, rss_before = 0, rss_full = 0;
  double seconds_malloc = 0, seconds_free = 0;
  uint64_t rss_after[kMaxIdle + 1];
};

// Resident memory without the test's own pointer array, which is fully resident until it is unmapped.
uint64_t rss_without(uint64_t own_bytes) {
  const uint64_t rss = bench::rss_bytes();
  return rss > own_bytes ? rss - own_bytes : 0;
}

void watch(Result *result) {
  for (uint64_t second = 0; second <= idle; ++second) {
    if (second != 0) bench::sleep_ms(1000);
    result->rss_after[second] = bench::rss_bytes();
  }
}

void run_single(Result *result) {
  const size_t capacity = capacity_of(bytes);
  Share share{bench::map_array<void *>(capacity)};
  bench::Random random(seed * 1000);
  result->rss_before = rss_without(capacity * sizeof(void *));
  const uint64_t begin = bench::now_ns();
  allocate(&share, bytes, &random);
  result->seconds_malloc = bench::seconds_since(begin);
  result->live_bytes = share.bytes;
  result->rss_full = rss_without(capacity * sizeof(void *));
  const uint64_t middle = bench::now_ns();
  free_all(&share, &random);
  result->seconds_free = bench::seconds_since(middle);
  bench::unmap_array(share.objects, capacity);
  watch(result);
}

void run_threads(Result *result) {
  const uint64_t share_bytes = bytes / threads;
  const size_t capacity = capacity_of(share_bytes);
  void **objects = bench::map_array<void *>(capacity * threads);
  Share *shares = bench::map_array<Share>(threads);
  bench::Barrier step(threads + 1);
  bench::Threads workers(threads, [&](size_t i) {
    bench::Random random(seed * 1000 + i);
    shares[i].objects = objects + i * capacity;
    step.wait();  // all exist
    step.wait();
    allocate(&shares[i], share_bytes, &random);
    step.wait();  // all have allocated
    step.wait();
    free_all(&shares[i], &random);
    step.wait();  // all have freed
    step.wait();  // the main thread has watched
  });
  const uint64_t own_bytes = capacity * threads * sizeof(void *);
  step.wait();
  result->rss_before = rss_without(own_bytes);
  const uint64_t begin = bench::now_ns();
  step.wait();
  step.wait();
  result->seconds_malloc = bench::seconds_since(begin);
  for (size_t i = 0; i < threads; ++i) result->live_bytes += shares[i].bytes;
  result->rss_full = rss_without(own_bytes);
  const uint64_t middle = bench::now_ns();
  step.wait();
  step.wait();
  result->seconds_free = bench::seconds_since(middle);
  bench::unmap_array(objects, capacity * threads);
  watch(result);
  step.wait();
  workers.join();
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&bytes, &min_size, &max_size, &threads, &shuffle, &idle, &seed});
  if (min_size == 0 || min_size > max_size || threads == 0 || idle > kMaxIdle)
    bench::die("%s: min and threads must be at least 1, min at most max, idle at most %zu", argv[0],
               static_cast<size_t>(kMaxIdle));
  Result result;
  if (threads == 1) {
    run_single(&result);
  } else {
    run_threads(&result);
  }
  const double live = static_cast<double>(result.live_bytes);
  const auto percent = [&](uint64_t rss) {
    return rss > result.rss_before ? 100 * static_cast<double>(rss - result.rss_before) / live : 0.0;
  };
  bench::Json json("burst");
  json.number("seconds", result.seconds_malloc + result.seconds_free)
      .number("seconds_malloc", result.seconds_malloc)
      .number("seconds_free", result.seconds_free)
      .param(threads)
      .param(shuffle)
      .count("live_bytes", result.live_bytes)
      .count("rss_before_bytes", result.rss_before)
      .number("full_percent", percent(result.rss_full));
  for (uint64_t second = 0; second <= idle; ++second) {
    char name[32];
    snprintf(name, sizeof(name), "after_%us_percent", static_cast<unsigned>(second));
    json.number(name, percent(result.rss_after[second]));
  }
  json.print();
}
