// fragmentation: how much memory does a heap need that was full, was thinned out, and is filled with other sizes?
//
// Source: Johnstone and Wilson, "The memory fragmentation problem: solved?", ISMM 1998, for what it is about: memory
// that is free but of no use. Evans' announcement of jemalloc (2005) shows it in pictures of the heap over time.
//
// Stresses: pages that few live objects hold. Stages:
//
//   full       `bytes` of objects of min to max bytes
//   thinned    nine in ten are freed at random; a tenth of the bytes is live
//   rested     the same after `rest` seconds without a call
//   refilled   objects of other_min to other_max bytes until as many bytes are live as at first
//   emptied    all freed, after `rest` seconds without a call: resident by `bytes`
//
// Reported for each stage: resident memory above what was there before, by what is live. The seconds are those of the
// calls, without the rests.

#include "bench.h"
#include "marks.h"

namespace {

using bench::Param;

Param bytes{"bytes", 256u << 20, "live bytes when the heap is full"};
Param min_size{"min", 16, "smallest size of the first objects (at least 12)"};
Param max_size{"max", 512, "largest"};
Param other_min{"other_min", 600, "smallest size of the later objects (at least 12)"};
Param other_max{"other_max", 4000, "largest"};
Param keep{"keep", 10, "one in so many survives the thinning"};
Param rest{"rest", 1, "seconds of the rests"};
Param seed{"seed", 1, "of the sizes and of who survives"};

struct Heap {
  void **objects;
  size_t count = 0, capacity;
  bench::Ledger *ledger;
  bench::Random random;
};

void fill(Heap *heap, size_t low, size_t high) {
  while (heap->ledger->bytes() < bytes) {
    if (heap->count == heap->capacity) bench::die("more objects than expected");
    heap->objects[heap->count++] = heap->ledger->allocate(heap->random.between(low, high));
  }
}

// In random order: a real program does not free in the order of addresses either.
void thin(Heap *heap) {
  bench::shuffle(heap->objects, heap->count, &heap->random);
  const size_t survivors = heap->count / keep;
  while (heap->count > survivors) heap->ledger->release(heap->objects[--heap->count]);
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&bytes, &min_size, &max_size, &other_min, &other_max, &keep, &rest, &seed});
  const uint64_t least = min_size < other_min ? min_size : other_min;
  if (least < bench::kMinMarked || min_size > max_size || other_min > other_max || keep == 0 || bytes == 0)
    bench::die("%s: sizes must be at least 12, min at most max, keep and bytes at least 1", argv[0]);
  // A quarter above what is expected, in one stage after the other.
  const size_t expected = bytes / ((min_size + max_size) / 2) + bytes / ((other_min + other_max) / 2);
  const size_t capacity = expected * 5 / 4 + 4096;
  Heap heap{bench::map_array<void *>(capacity), 0, capacity, bench::map_array<bench::Ledger>(1), bench::Random(seed)};
  bench::Json json("fragmentation");
  const uint64_t before = bench::rss_bytes();
  const auto report = [&](const char *name, uint64_t live) {
    const uint64_t now = bench::rss_bytes();
    const double above = now > before ? static_cast<double>(now - before) : 0;
    json.number(name, above / static_cast<double>(live));
  };
  double seconds = 0;
  const auto timed = [&](auto action) {
    const uint64_t begin = bench::now_ns();
    action();
    seconds += bench::seconds_since(begin);
  };
  timed([&] { fill(&heap, min_size, max_size); });
  report("full_by_live", heap.ledger->bytes());
  timed([&] { thin(&heap); });
  report("thinned_by_live", heap.ledger->bytes());
  json.count("thinned_live_bytes", heap.ledger->bytes());
  bench::sleep_ms(rest * 1000);
  report("rested_by_live", heap.ledger->bytes());
  timed([&] { fill(&heap, other_min, other_max); });
  report("refilled_by_live", heap.ledger->bytes());
  timed([&] {
    while (heap.count != 0) heap.ledger->release(heap.objects[--heap.count]);
  });
  bench::sleep_ms(rest * 1000);
  report("emptied_by_full", bytes);
  bench::Ledger::must_balance(heap.ledger, 1);
  json.number("seconds", seconds).param(bytes).param(keep).print();
}
