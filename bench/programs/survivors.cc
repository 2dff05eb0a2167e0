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

// The objects, which threads allocate and free in parts of equal numbers, and what the main thread looks at in between.
struct Heap {
  size_t count;
  void **objects;
  bench::Ledger *ledgers;
  bench::Barrier step;

  Heap()
      : count(bytes / size),
        objects(bench::map_array<void *>(count)),
        ledgers(bench::map_array<bench::Ledger>(threads)),
        step(threads + 1) {}

  void fill(size_t i) {
    for (size_t n = i * count / threads; n < (i + 1) * count / threads; ++n) {
      if (objects[n] != nullptr) continue;
      objects[n] = ledgers[i].allocate(size);
      touch(objects[n]);
    }
  }
  void thin(size_t i) {
    for (size_t n = i * count / threads; n < (i + 1) * count / threads; ++n) {
      if (n % every == 0) continue;
      ledgers[i].release(objects[n]);
      objects[n] = nullptr;
    }
  }
  void work(size_t i) {
    step.wait();  // all exist
    fill(i);
    step.wait();  // all have allocated
    step.wait();  // all is shuffled
    thin(i);
    step.wait();  // all have freed
    step.wait();  // the main thread has looked
    fill(i);
    step.wait();  // all is there again
  }
  // The threads take their next step. Returns seconds.
  double next_step() {
    const uint64_t begin = bench::now_ns();
    step.wait();
    step.wait();
    return bench::seconds_since(begin);
  }
};

struct Found {
  uint64_t before, full, freed, rested;  // resident bytes
  uint64_t pages, faults_again;
  double seconds;
};

Found watch(Heap &heap) {
  Found found{};
  found.before = bench::rss_bytes();
  heap.next_step();
  found.full = bench::rss_bytes();
  bench::Random random(seed);
  bench::shuffle(heap.objects, heap.count, &random);
  found.seconds = heap.next_step();
  found.freed = bench::rss_bytes();
  bench::sleep_ms(rest_ms);
  if (trim != 0) malloc_trim(0);
  found.rested = bench::rss_bytes();
  found.pages = pages_of(heap.objects, gather(heap.objects, heap.count));
  const uint64_t faults_before = faults();
  found.seconds += heap.next_step();
  found.faults_again = faults() - faults_before;
  return found;
}

void report(const Found &found) {
  bench::Json json("survivors");
  const auto ratio = [&](const char *name, uint64_t rss) {
    const uint64_t above = rss > found.before ? rss - found.before : 0;
    json.number(name, static_cast<double>(above) / static_cast<double>(found.pages * kPage));
  };
  ratio("full_by_pages", found.full);
  ratio("freed_by_pages", found.freed);
  ratio("rested_by_pages", found.rested);
  json.number("seconds", found.seconds)
      .count("faults_again", found.faults_again)
      .count("live_pages", found.pages)
      .param(threads)
      .param(size)
      .param(every)
      .print();
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &bytes, &size, &every, &rest_ms, &trim, &seed});
  if (threads == 0 || every < 2 || size < bench::kMinMarked || bytes / size < threads * every)
    bench::die("%s: threads must be at least 1, every 2, size 12, and an object for each thread must stay", argv[0]);
  Heap heap;
  bench::Threads workers(threads, [&](size_t i) { heap.work(i); });
  const Found found = watch(heap);
  workers.join();
  for (size_t n = 0; n < heap.count; ++n) heap.ledgers[0].release(heap.objects[n]);
  bench::Ledger::must_balance(heap.ledgers, threads);
  report(found);
}
