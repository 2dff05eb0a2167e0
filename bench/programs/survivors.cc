// survivors: of many objects of one size a few stay, at random, as the entries of a cache or the sessions of a server
// do after a peak. How much of what the others had stays resident with them?
//
// Source: "8 GB used, 58 GB resident", as it is asked about each allocator with size classes: one object that lives
// keeps its slab, or its page. fragmentation.cc mixes sizes and frees nine in ten; this shows one size at a time.
//
// Stresses: giving back pages between objects that live, and finding room among these again.
//
// Each thread allocates its share of `bytes` and touches it; all objects are shuffled; each thread frees a share of
// them but for one object in `every`. After `rest_ms` (and malloc_trim, with trim=1) the resident memory is compared
// with the pages that live objects touch, which no allocator can give back. Then as many objects come again. At the
// end every object that lived through all of it is checked.

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>

#include "bench.h"
#include "marks.h"

namespace {

using bench::Param;

Param threads{"threads", 1, "threads"};
Param bytes{"bytes", 256u << 20, "bytes of objects"};
Param size{"size", 200, "of each (at least 12)"};
Param every{"every", 64, "one in so many stays"};
Param rest_ms{"rest_ms", 1500, "milliseconds before the look"};
Param trim{"trim", 0, "1: malloc_trim before the look"};
Param seed{"seed", 1, "of the shuffle"};

constexpr size_t kPage = 4096;

void touch(void *object) {
  for (size_t at = kPage; at < size - 4; at += kPage) static_cast<volatile char *>(object)[at] = 's';
}

// Moves what lives to the front, in the order of addresses; returns how many.
size_t gather(void **objects, size_t count) {
  size_t n = 0;
  for (size_t i = 0; i < count; ++i) {
    if (objects[i] != nullptr) std::swap(objects[n++], objects[i]);
  }
  std::sort(objects, objects + n);
  return n;
}

uint64_t pages_of(void *const *objects, size_t count) {
  uint64_t pages = 0;
  uintptr_t next = 0;  // the first page that was not counted yet
  for (size_t i = 0; i < count; ++i) {
    const auto at = reinterpret_cast<uintptr_t>(objects[i]);
    const uintptr_t first = std::max(at / kPage, next), last = (at + size - 1) / kPage;
    if (last < first) continue;
    pages += last - first + 1;
    next = last + 1;
  }
  return pages;
}

uint64_t faults() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_minflt);
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &bytes, &size, &every, &rest_ms, &trim, &seed});
  if (threads == 0 || every < 2 || size < bench::kMinMarked || bytes / size < threads * every)
    bench::die("%s: threads must be at least 1, every 2, size 12, and an object for each thread must stay", argv[0]);
  const size_t count = bytes / size;
  void **objects = bench::map_array<void *>(count);
  auto *ledgers = bench::map_array<bench::Ledger>(threads);
  bench::Barrier step(threads + 1);
  const auto fill = [&](size_t i) {
    for (size_t n = i * count / threads; n < (i + 1) * count / threads; ++n) {
      if (objects[n] != nullptr) continue;
      objects[n] = ledgers[i].allocate(size);
      touch(objects[n]);
    }
  };
  bench::Threads workers(threads, [&](size_t i) {
    step.wait();  // all exist
    fill(i);
    step.wait();  // all have allocated
    step.wait();  // all is shuffled
    for (size_t n = i * count / threads; n < (i + 1) * count / threads; ++n) {
      if (n % every == 0) continue;
      ledgers[i].release(objects[n]);
      objects[n] = nullptr;
    }
    step.wait();  // all have freed
    step.wait();  // the main thread has looked
    fill(i);
    step.wait();  // all is there again
  });
  const uint64_t before = bench::rss_bytes();
  step.wait();
  step.wait();
  const uint64_t full = bench::rss_bytes();
  bench::Random random(seed);
  bench::shuffle(objects, count, &random);
  uint64_t begin = bench::now_ns();
  step.wait();
  step.wait();
  double seconds = bench::seconds_since(begin);
  const uint64_t freed = bench::rss_bytes();
  bench::sleep_ms(rest_ms);
  if (trim != 0) malloc_trim(0);
  const uint64_t rested = bench::rss_bytes();
  const size_t live = gather(objects, count);
  const uint64_t pages = pages_of(objects, live);
  const uint64_t faults_before = faults();
  begin = bench::now_ns();
  step.wait();
  step.wait();
  seconds += bench::seconds_since(begin);
  const uint64_t faults_again = faults() - faults_before;
  workers.join();
  for (size_t n = 0; n < count; ++n) ledgers[0].release(objects[n]);
  bench::Ledger::must_balance(ledgers, threads);
  bench::Json json("survivors");
  const auto ratio = [&](const char *name, uint64_t rss) {
    const uint64_t above = rss > before ? rss - before : 0;
    json.number(name, static_cast<double>(above) / static_cast<double>(pages * kPage));
  };
  ratio("full_by_pages", full);
  ratio("freed_by_pages", freed);
  ratio("rested_by_pages", rested);
  json.number("seconds", seconds)
      .count("faults_again", faults_again)
      .count("live_pages", pages)
      .param(threads)
      .param(size)
      .param(every)
      .print();
}
