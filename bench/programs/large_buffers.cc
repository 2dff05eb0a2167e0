// large_buffers: buffers of 64 KiB to 8 MiB come and go, and all of their pages are used.
//
// Source: the complaint of image, video and network programs, for which a malloc is as fast as its page faults: each
// large buffer is mapped, faulted in page by page, and unmapped. Kuszmaul, "SuperMalloc", ISMM 2015, sections 5 and 6,
// describes large and huge objects but measures none.
//
// Stresses: whether the pages of a freed buffer serve the next one, of another size; what that costs in memory.
//
// Each step replaces the buffer of a random slot. Each power of two is equally likely. The first word of each page is
// written, and checked before the buffer is freed. Reported: peak memory, and the same by the bytes held at most.

#include "bench.h"
#include "marks.h"

namespace {

using bench::Param;

Param threads{"threads", 1, "threads, each with its own slots"};
Param ops{"ops", 10000, "buffers allocated in all"};
Param slots{"slots", 16, "live buffers a thread"};
Param min_size{"min", 64u << 10, "smallest size (at least 4096)"};
Param max_size{"max", 8u << 20, "largest size (below 4 GiB)"};
Param seed{"seed", 1, "of the sizes and victims"};

constexpr size_t kPage = 4096;

void *allocate(bench::Ledger *ledger, size_t size) {
  void *buffer = ledger->allocate(size);
  char *bytes = static_cast<char *>(buffer);
  for (size_t at = kPage; at + 8 <= size - 4; at += kPage) {
    const uint64_t word = reinterpret_cast<uintptr_t>(bytes + at) ^ size;
    memcpy(bytes + at, &word, sizeof(word));
  }
  return buffer;
}

void release(bench::Ledger *ledger, void *buffer) {
  const char *bytes = static_cast<char *>(buffer);
  const size_t size = bench::checked(buffer).size;
  for (size_t at = kPage; at + 8 <= size - 4; at += kPage) {
    uint64_t word;
    memcpy(&word, bytes + at, sizeof(word));
    if (word != (reinterpret_cast<uintptr_t>(bytes + at) ^ size)) bench::die("a buffer lost a page");
  }
  ledger->release(buffer);
}

struct Churn {
  void **slots;
  bench::Ledger *ledgers;
  bench::Peak live;  // of the first thread, which looks at all
};

void churn(Churn *c, size_t index, uint64_t count) {
  bench::Random random(seed * 1000 + index);
  bench::Ledger *ledger = &c->ledgers[index];
  void **own = c->slots + index * slots;
  for (uint64_t i = 0; i < count; ++i) {
    void **slot = &own[random.below(slots)];
    if (*slot != nullptr) release(ledger, *slot);
    *slot = allocate(ledger, bench::log_uniform(&random, min_size, max_size));
    if (index == 0) c->live.note(bench::Ledger::live_bytes(c->ledgers, threads));
  }
  for (size_t i = 0; i < slots; ++i) {
    if (own[i] != nullptr) release(ledger, own[i]);
  }
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &ops, &slots, &min_size, &max_size, &seed});
  if (threads == 0 || slots == 0 || min_size < kPage || min_size > max_size || max_size > UINT32_MAX)
    bench::die("%s: threads and slots must be at least 1, min 4096, and min at most max, below 4 GiB", argv[0]);
  Churn c{bench::map_array<void *>(threads * slots), bench::map_array<bench::Ledger>(threads), {}};
  const uint64_t before = bench::rss_bytes();
  const uint64_t share = ops / threads;
  const uint64_t begin = bench::now_ns();
  if (threads == 1) {
    churn(&c, 0, share);
  } else {
    bench::Threads workers(threads, [&](size_t i) { churn(&c, i, share); });
    workers.join();
  }
  const double seconds = bench::seconds_since(begin);
  bench::Ledger::must_balance(c.ledgers, threads);
  bench::Json("large_buffers")
      .speed(seconds, share * threads)
      .param(threads)
      .param(slots)
      .count("live_peak_bytes", c.live.value)
      .number("peak_by_live", bench::peak_by_live(before, c.live.value))
      .print();
}
