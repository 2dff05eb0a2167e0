// What an atomic read-modify-write costs here, alone and when its line passes between two cores: the constants of
// bench/scaling.py's model. In the manner of figure 5 of Kuszmaul, "SuperMalloc", ISMM 2015.
//
// The stack is Folio's own (src/sync/tagged_stack.h): two threads pop a node and push it again.

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "programs/bench.h"
#include "sync/tagged_stack.h"

namespace {

bench::Param ops{"ops", 4000, "operations of each thread in a round"};
bench::Param limit{"limit", 3000, "milliseconds for each measurement"};

struct alignas(512) Node {
  folio::Atomic<Node *> link;
  folio::Atomic<Node *> &stack_link() { return link; }
};

alignas(128) std::atomic<uint64_t> word;
alignas(128) folio::TaggedStack<Node, 9> stack;
Node nodes[64];

void pin(unsigned which) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  CPU_ZERO(&one);
  for (unsigned cpu = 0, found = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && found++ == which) CPU_SET(cpu, &one);
  }
  if (CPU_COUNT(&one) == 1) sched_setaffinity(0, sizeof one, &one);
}

struct Span {
  uint64_t begin, end;
};

// Nanoseconds for each of `count` runs of body(thread, i) by each of `threads` threads, over the threads together: the
// best of many short rounds, of which those count in which all threads ran all the time. The threads take the time:
// whoever starts them may be woken when they are done. 0 if no round counts.
template <class Body>
double measure(unsigned threads, uint64_t count, Body body) {
  double best = 0;
  const uint64_t begun = bench::now_ns();
  for (unsigned round = 0; round < 300 && bench::now_ns() - begun < limit * 1000000; ++round) {
    word = 0;
    Span spans[2];
    bench::Barrier start(threads);
    bench::Threads all(threads, [&](size_t i) {
      pin(static_cast<unsigned>(i));
      start.wait();
      spans[i].begin = bench::now_ns();
      for (uint64_t n = 0; n < count; ++n) body(i, n);
      spans[i].end = bench::now_ns();
    });
    all.join();
    const Span &a = spans[0], &b = spans[threads - 1];
    const auto span = static_cast<double>(std::max(a.end, b.end) - std::min(a.begin, b.begin));
    const auto together = static_cast<double>(std::min(a.end, b.end)) - static_cast<double>(std::max(a.begin, b.begin));
    const double each = span / static_cast<double>(count * threads);
    if (together > 0.9 * span && (best == 0 || each < best)) best = each;
  }
  return best;
}

void add(size_t, uint64_t) { word.fetch_add(1, std::memory_order_relaxed); }

void enter_and_leave(size_t, uint64_t) {
  word.exchange(1, std::memory_order_acquire);
  word.store(0, std::memory_order_release);
}

// Strictly in turns: each operation has the line from the other core.
void take_turns(size_t thread, uint64_t n) {
  while (word.load(std::memory_order_acquire) != 2 * n + thread) {
  }
  word.store(2 * n + thread + 1, std::memory_order_release);
}

void pop_and_push(size_t, uint64_t) {
  if (Node *node = stack.pop()) stack.push(node);
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&ops, &limit});
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2)
    bench::die("%s needs two CPUs", argv[0]);
  for (Node &node : nodes) stack.push(&node);
  const double rmw = measure(1, ops, add), section = measure(1, ops, enter_and_leave);
  const double rmw_both = measure(2, ops, add);
  const double stack_alone = measure(1, ops, pop_and_push), stack_both = measure(2, ops, pop_and_push);
  const double pass = measure(2, ops, take_turns);
  bench::Json("line_costs")
      .number("rmw_ns", rmw)
      .number("section_ns", section)
      .number("rmw_two_cores_ns", rmw_both)
      .number("pass_ns", pass)
      .number("stack_ns", stack_alone)
      .number("stack_two_cores_ns", stack_both)
      .print();
}
