// super_server: a server whose object sizes span the whole range and whose objects die elsewhere.
//
// Source: SuperServer of Kuszmaul, "SuperMalloc", ISMM 2015, section 9. For each object coins are flipped until the
// first head; after k flips (at least 4) it gets a size of 2^k to 2^(k+1)-1 bytes, so that each power of two has about
// the same share of the bytes. The expected lifetime is proportional to the size, and a randomly chosen other thread
// frees the object. Reported: throughput, peak memory, and the times of single calls, those for sizes of up to 1 MiB
// (k below 20) apart from those for more, which allocators may hand to the kernel. There are more threads than CPUs, so
// the longest call of all is a time slice of the scheduler; hence also the longest without a preemption near it. One
// allocator has the kernel bring pages within malloc, another leaves them to the program's first touch; so there are
// also the times of a malloc together with a touch of each page of the object.
//
// Lifetimes without a calendar: each thread has, for each k, a number of slots proportional to 2^k times the share of k
// among the objects. A new object replaces a random one of its k, so that one has lived, on average, for a number of
// allocations proportional to its size. What is replaced goes to the mailbox of another thread: a list through the
// objects themselves, pushed with one compare-and-swap and emptied with one exchange.
//
// Stresses: many sizes at once up to whole megabytes, remote frees, slow paths that happen rarely.

#include <algorithm>
#include <atomic>

#include "bench.h"
#include "call_times.h"

namespace {

using bench::Param;

Param threads{"threads", 4, "threads (at least 2)"};
Param ops{"ops", 8000000, "allocations in all"};
Param max_power{"max_power", 22, "largest k (at most 30)"};
Param slots{"slots", 32, "live objects a thread and k"};
Param seed{"seed", 1, "of everything random"};

constexpr size_t kMinPower = 4;
// 15 of 16 objects have k = 4, each further k half as many as the one before: times 2^k, that is 15 against 1.
constexpr size_t kMinPowerWeight = 15;
constexpr size_t kDrainEvery = 16;
constexpr size_t kLargePower = 20;  // the sizes of k = 20 begin at 1 MiB

struct Letter {
  Letter *next;
  size_t power;
};
static_assert(sizeof(Letter) <= size_t{1} << kMinPower);

// [0]: sizes of up to 1 MiB, [1]: larger ones.
struct Times {
  bench::CallTimes malloc_times[2], free_times[2], touched_times[2];
};

struct alignas(128) Server {
  alignas(128) std::atomic<Letter *> mailbox;
  alignas(128) void **objects;  // the slots of k begin at `slots_before(k)`
  Times times;
};

size_t slots_of(size_t power) { return power == kMinPower ? slots * kMinPowerWeight : slots; }
size_t slots_before(size_t power) { return power == kMinPower ? 0 : slots * (kMinPowerWeight + power - kMinPower - 1); }

void post(Server *to, void *object, size_t power) {
  Letter *letter = static_cast<Letter *>(object);
  letter->power = power;
  letter->next = to->mailbox.load(std::memory_order_relaxed);
  while (
      !to->mailbox.compare_exchange_weak(letter->next, letter, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void drain(Server *own, bench::Disturbance *disturbance) {
  if (own->mailbox.load(std::memory_order_relaxed) == nullptr) return;
  Letter *letter = own->mailbox.exchange(nullptr, std::memory_order_acquire);
  while (letter != nullptr) {
    Letter *next = letter->next;
    bench::CallTimes *times = &own->times.free_times[letter->power >= kLargePower];
    const uint64_t begin = bench::now_ns();
    free(letter);
    times->record(bench::now_ns() - begin, disturbance);
    letter = next;
  }
}

void serve(Server *servers, size_t index, uint64_t count) {
  bench::Random random(seed * 1000 + index);
  Server *own = &servers[index];
  bench::Disturbance disturbance;
  for (uint64_t i = 0; i < count; ++i) {
    disturbance.poll(i);
    const uint64_t coins = random.next() >> 32 | uint64_t{1} << max_power;
    size_t power = static_cast<size_t>(__builtin_ctzll(coins)) + 1;
    if (power < kMinPower) power = kMinPower;
    if (power > max_power) power = max_power;
    const size_t size = (size_t{1} << power) + random.below(size_t{1} << power);
    const uint64_t begin = bench::now_ns();
    void *object = malloc(size);
    const uint64_t malloc_ns = bench::now_ns() - begin;
    const bool large = power >= kLargePower;
    const bool preempted = own->times.malloc_times[large].record(malloc_ns, &disturbance);
    if (object == nullptr) bench::die("malloc(%zu) failed", size);
    const uint64_t touch = bench::now_ns();
    bench::touch_pages(object, size);
    own->times.touched_times[large].record(malloc_ns + bench::now_ns() - touch, &disturbance, preempted);
    void **slot = &own->objects[slots_before(power) + random.below(slots_of(power))];
    void *replaced = *slot;
    *slot = object;
    if (replaced != nullptr) {
      const size_t other = (index + 1 + random.below(threads - 1)) % threads;
      post(&servers[other], replaced, power);
    }
    if (i % kDrainEvery == 0) drain(own, &disturbance);
  }
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &ops, &max_power, &slots, &seed});
  if (threads < 2 || slots == 0 || max_power < 5 || max_power > 30)
    bench::die("%s: threads is at least 2, slots at least 1, max_power 5 to 30", argv[0]);
  Server *servers = bench::map_array<Server>(threads);
  const size_t slots_each = slots_before(max_power + 1);
  for (size_t i = 0; i < threads; ++i) servers[i].objects = bench::map_array<void *>(slots_each);
  const uint64_t share = ops / threads;
  bench::Barrier start(threads + 1), finish(threads + 1);
  bench::Threads workers(threads, [&](size_t i) {
    start.wait();
    serve(servers, i, share);
    finish.wait();
    bench::Disturbance disturbance;
    drain(&servers[i], &disturbance);
    for (size_t s = 0; s < slots_each; ++s) free(servers[i].objects[s]);
  });
  start.wait();
  const uint64_t begin = bench::now_ns();
  finish.wait();
  const double seconds = bench::seconds_since(begin);
  workers.join();
  Times *all = bench::map_array<Times>(1);
  for (size_t i = 0; i < threads; ++i) {
    for (size_t large = 0; large < 2; ++large) {
      all->malloc_times[large].add(servers[i].times.malloc_times[large]);
      all->free_times[large].add(servers[i].times.free_times[large]);
      all->touched_times[large].add(servers[i].times.touched_times[large]);
    }
  }
  const bench::CallTimes &malloc_times = all->malloc_times[0], &free_times = all->free_times[0];
  bench::Json json("super_server");
  json.speed(seconds, share * threads)
      .param(threads)
      .param(max_power)
      .count("slowest_ns", std::max(malloc_times.max(), free_times.max()))
      .count("slowest_undisturbed_ns", std::max(malloc_times.max_undisturbed(), free_times.max_undisturbed()))
      .count("large_slowest_ns", std::max(all->malloc_times[1].max(), all->free_times[1].max()));
  malloc_times.report(&json, "malloc");
  free_times.report(&json, "free");
  all->touched_times[0].report(&json, "malloc_and_touch");
  json.print();
}
