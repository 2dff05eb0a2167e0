// group_cycles: blocks are allocated in groups of one size and freed in groups, in part, in three orders.
//
// Source: in the manner of sh6bench, a commercial benchmark of MicroQuill that Evans' announcement of jemalloc (2005)
// reports: groups of blocks of random sizes, some of which are held longer, freed in different orders. Written from
// such descriptions; its figures are not comparable with the original's.
//
// Stresses: runs of mallocs of one size followed by runs of frees: last in first out, which caches like; first in first
// out, which sends what is oldest back first; and random. Half-freed groups leave holes that the next groups fill.
//
// There are `held` places for groups. Each cycle picks one at random. An empty place gets a new group: 1 to `group`
// blocks of one size, small ones more often. A group that is there is freed in one of the three orders, drawn anew each
// time: whole, or, once in its life, only half of it. Reported: throughput, and peak memory by the bytes held at most
// (the first thread looks whenever it has allocated a group).

#include "bench.h"
#include "marks.h"

namespace {

using bench::Param;

Param threads{"threads", 1, "threads, each with its own places"};
Param ops{"ops", 40000000, "blocks allocated in all"};
Param held{"held", 200, "places for groups a thread"};
Param group{"group", 400, "most blocks a group"};
Param min_size{"min", 16, "smallest size (at least 12)"};
Param max_size{"max", 1000, "largest size"};
Param seed{"seed", 1, "of everything random"};

enum Order { kLifo, kFifo, kRandom, kOrders };

struct Group {
  void **blocks;
  size_t count;
  bool halved;
};

void allocate(Group *g, bench::Ledger *ledger, bench::Random *random) {
  const size_t size = bench::log_uniform(random, min_size, max_size);
  g->count = random->between(1, group);
  g->halved = false;
  for (size_t i = 0; i < g->count; ++i) g->blocks[i] = ledger->allocate(size);
}

void release(Group *g, size_t some, Order order, bench::Ledger *ledger, bench::Random *random) {
  if (order == kRandom) bench::shuffle(g->blocks, g->count, random);
  if (order == kFifo) {
    for (size_t i = 0; i < some; ++i) ledger->release(g->blocks[i]);
    memmove(g->blocks, g->blocks + some, (g->count - some) * sizeof(void *));
    g->count -= some;
  } else {
    for (size_t i = 0; i < some; ++i) ledger->release(g->blocks[--g->count]);
  }
}

void cycle(Group *groups, bench::Ledger *ledgers, size_t index, uint64_t share, bench::Peak *live) {
  bench::Ledger *ledger = &ledgers[index];
  bench::Random random(seed * 1000 + index);
  for (uint64_t done = 0; done < share;) {
    Group *g = &groups[random.below(held)];
    if (g->count == 0) {
      allocate(g, ledger, &random);
      done += g->count;
      if (index == 0) live->note(bench::Ledger::live_bytes(ledgers, threads));
      continue;
    }
    const bool half = !g->halved && random.below(2) == 0;
    g->halved = g->halved || half;
    release(g, half ? (g->count + 1) / 2 : g->count, static_cast<Order>(random.below(kOrders)), ledger, &random);
  }
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &ops, &held, &group, &min_size, &max_size, &seed});
  if (threads == 0 || held == 0 || group == 0 || min_size < bench::kMinMarked || min_size > max_size)
    bench::die("%s: threads, held and group must be at least 1, min at least 12 and at most max", argv[0]);
  Group *groups = bench::map_array<Group>(threads * held);
  void **blocks = bench::map_array<void *>(threads * held * group);
  for (size_t i = 0; i < threads * held; ++i) groups[i].blocks = blocks + i * group;
  bench::Ledger *ledgers = bench::map_array<bench::Ledger>(threads);
  const uint64_t share = ops / threads;
  bench::Peak live;
  const uint64_t before = bench::rss_bytes();
  double seconds;
  if (threads == 1) {  // in the main thread, as the original's default
    const uint64_t begin = bench::now_ns();
    cycle(groups, ledgers, 0, share, &live);
    seconds = bench::seconds_since(begin);
  } else {
    bench::Barrier start(threads + 1);
    bench::Threads workers(threads, [&](size_t i) {
      start.wait();
      cycle(groups + i * held, ledgers, i, share, &live);
    });
    seconds = bench::run(&start, &workers);
  }
  bench::Random random(seed);
  for (size_t i = 0; i < threads * held; ++i) release(&groups[i], groups[i].count, kLifo, &ledgers[i / held], &random);
  bench::Ledger::must_balance(ledgers, threads);
  bench::Json("group_cycles")
      .speed(seconds, share * threads)
      .param(threads)
      .param(held)
      .param(group)
      .param(max_size)
      .count("live_peak_bytes", live.value)
      .number("peak_by_live", bench::peak_by_live(before, live.value))
      .print();
}
