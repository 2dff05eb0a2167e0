// order: does memory that was freed in disorder come back in disorder? A list is built of fresh objects, and again
// after all, or some, of them were freed at random; what a walk over it costs says how its nodes lie.
//
// Source: caches and queues carry objects in the order in which they were freed. An allocator that hands them out in
// that order scatters a program's next structures over the whole heap: each node a cache line and a page of its own,
// where the processor would have fetched neighbours before they are asked for.
//
// Stresses: what happens to full caches of shuffled objects, and what it costs to bring them in order.
//
// Turns: `objects` nodes are allocated and linked in that order, and walked; then they are shuffled and freed, by the
// same thread (by=0) or another (by=1); and again. With replaced=N, before the last list is built, `threads` threads
// replace N objects of 16 bytes to 4 times `size` at random, as in a long life, and half of these are freed. A sum over
// the nodes says that all are there.

#include <algorithm>

#include "bench.h"

namespace {

using bench::Param;

Param objects{"objects", 100000, "nodes of the list"};
Param size{"size", 64, "of each (at least 16)"};
Param turns{"turns", 10, "times that all are freed at random and allocated again"};
Param by{"by", 1, "which thread frees: 0 the same, 1 another"};
Param replaced{"replaced", 0, "objects that are replaced at random in place of turns"};
Param threads{"threads", 1, "that replace"};

struct Node {
  Node *next;
  uint64_t number;
};

constexpr uint64_t kWalkLeastNs = 20000000;
constexpr size_t kPage = 4096, kTogether = 64;

template <class Body>
double ns_each(size_t count, Body body) {
  const uint64_t begin = bench::now_ns();
  body();
  return static_cast<double>(bench::now_ns() - begin) / static_cast<double>(count);
}

void allocate(Node **nodes, size_t count) {
  Node *last = nullptr;
  for (size_t i = 0; i < count; ++i) {
    auto *const node = static_cast<Node *>(bench::must_malloc(size));
    *node = {nullptr, i};
    if (last != nullptr) last->next = node;
    nodes[i] = last = node;
  }
}

// The quickest of the walks that fit into some time, so that what disturbs one does not count.
double walk(const Node *first, size_t count) {
  double best = 1e9;
  const uint64_t begin = bench::now_ns();
  for (int n = 0; n < 3 || bench::now_ns() - begin < kWalkLeastNs; ++n) {
    uint64_t sum = 0;
    const double ns = ns_each(count, [&] {
      for (const Node *node = first; node != nullptr; node = node->next) sum += node->number;
    });
    if (sum != uint64_t{count} * (count - 1) / 2) bench::die("the list lost nodes, or their contents");
    best = std::min(best, ns);
  }
  return best;
}

// How many pages so many nodes in a row touch: what a data TLB sees, and the same on every machine.
double pages_together(Node *const *nodes, size_t count) {
  uint64_t pages = 0, groups = 0;
  for (size_t i = 0; i + kTogether <= count; i += kTogether, ++groups) {
    uintptr_t of[kTogether];
    for (size_t k = 0; k < kTogether; ++k) of[k] = reinterpret_cast<uintptr_t>(nodes[i + k]) / kPage;
    std::sort(of, of + kTogether);
    pages += static_cast<uint64_t>(std::unique(of, of + kTogether) - of);
  }
  return groups == 0 ? 0 : static_cast<double>(pages) / static_cast<double>(groups);
}

void free_all(Node *const *nodes, size_t count) {
  for (size_t i = 0; i < count; ++i) free(nodes[i]);
}

size_t any_size(bench::Random &random) { return random.between(16, 4 * size); }

// A long life: returns ns a replacement.
double live_long(size_t count) {
  auto **const slots = bench::map_array<void *>(count);
  bench::Random first(7);
  for (size_t i = 0; i < count; ++i) bench::touch_ends(slots[i] = bench::must_malloc(any_size(first)), 16);
  const double ns = ns_each(replaced, [&] {
    bench::Threads workers(threads, [&](size_t t) {
      bench::Random random(t);
      const size_t from = t * count / threads, n = (t + 1) * count / threads - from;
      for (uint64_t i = 0; i < replaced / threads; ++i) {
        void *&slot = slots[from + random.below(n)];
        free(slot);
        slot = bench::must_malloc(any_size(random));
        bench::touch_ends(slot, 16);
      }
    });
    workers.join();
  });
  bench::shuffle(slots, count, &first);
  for (size_t i = 0; i < count / 2; ++i) free(slots[i]);
  return ns;  // the other half stays until the end
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&objects, &size, &turns, &by, &replaced, &threads});
  if (objects < 2 || objects > 100000000 || size < sizeof(Node) || by > 1 || threads < 1 || threads > objects)
    bench::die("%s: 2 to 10^8 objects of at least 16 bytes; by is 0 or 1; 1 thread, at most one for each object",
               argv[0]);
  auto **const nodes = bench::map_array<Node *>(objects);
  bench::Random random(1);
  const uint64_t begin = bench::now_ns();
  const double fresh_build_ns = ns_each(objects, [&] { allocate(nodes, objects); });
  const double fresh_ns = walk(nodes[0], objects), fresh_pages = pages_together(nodes, objects);
  double replace_ns = 0, free_ns = 0, build_ns = 0;
  const uint64_t rounds = replaced != 0 ? 1 : static_cast<uint64_t>(turns);
  bench::Barrier step(2);
  bench::Threads other(1, [&](size_t) {
    for (uint64_t turn = 0; turn < rounds; ++turn) {
      step.wait();
      if (by == 1) free_ns += ns_each(objects, [&] { free_all(nodes, objects); });
      step.wait();
    }
  });
  for (uint64_t turn = 0; turn < rounds; ++turn) {
    bench::shuffle(nodes, objects, &random);
    step.wait();
    if (by == 0) free_ns += ns_each(objects, [&] { free_all(nodes, objects); });
    step.wait();
    if (replaced != 0) replace_ns = live_long(2 * objects);
    build_ns += ns_each(objects, [&] { allocate(nodes, objects); });
  }
  other.join();
  const double walk_ns = walk(nodes[0], objects);
  const auto each = [&](double sum) { return sum / static_cast<double>(rounds); };
  bench::Json("order")
      .number("fresh_ns", fresh_ns)
      .number("walk_ns", walk_ns)
      .number("walk_by_fresh", walk_ns / fresh_ns)
      .number("fresh_pages", fresh_pages)
      .number("pages", pages_together(nodes, objects))
      .number("fresh_build_ns", fresh_build_ns)
      .number("build_ns", each(build_ns))
      .number("free_ns", each(free_ns))
      .number("replace_ns", replace_ns)
      .number("seconds", bench::seconds_since(begin))
      .param(objects)
      .param(size)
      .print();
}
