// key_value: a store of small objects in memory, much larger than what the TLB reaches, read at random.
//
// Source: what caches, indexes and in-memory databases do; redis and memcached without their sockets.
//
// Stresses: where objects lie. A read touches a bucket and one or more entries, each on a page of its own: with pages
// of 4 KiB each is a miss of the TLB, and a walk of page tables that do not fit the caches either.
//
// A table of chains is filled up to `bytes` of entries of `least` to `most` bytes in random order of keys. Then each
// operation looks a key up and reads its value; one in `writes` gives the key a new value of another size. Values are
// checked. Threads have stripes of the table of their own.

#include "bench.h"

namespace {

using bench::Param;

Param threads{"threads", 1, "threads"};
Param bytes{"bytes", 512u << 20, "bytes of entries"};
Param least{"least", 32, "of an entry (at least 32)"};
Param most{"most", 512, "of an entry"};
Param writes{"writes", 10, "one operation in so many gives a new value"};
Param operations{"operations", 10000000, "of all threads"};
Param seed{"seed", 1, "of keys and sizes"};

struct Entry {
  Entry *next;
  uint64_t key;
  uint64_t length;  // of the whole entry
  uint64_t sum;     // key and length, and the same again in its last bytes where there is room
};

uint64_t sum_of(uint64_t key, uint64_t length) { return key * 0x9E3779B97F4A7C15u ^ length; }

Entry *make_entry(uint64_t key, size_t length, Entry *next) {
  auto *entry = static_cast<Entry *>(bench::must_malloc(length));
  bench::touch_ends(entry, length);
  *entry = {next, key, length, sum_of(key, length)};
  if (length >= sizeof(Entry) + 8) memcpy(reinterpret_cast<char *>(entry) + length - 8, &entry->sum, 8);
  return entry;
}

void check_entry(const Entry *entry) {
  uint64_t sum = entry->sum;
  if (entry->length >= sizeof(Entry) + 8) {
    memcpy(&sum, reinterpret_cast<const char *>(entry) + entry->length - 8, 8);
  }
  if (entry->sum != sum_of(entry->key, entry->length) || sum != entry->sum)
    bench::die("key_value: the entry of key %llu is damaged", static_cast<unsigned long long>(entry->key));
}

// A thread's part: keys 0 to keys - 1.
struct Stripe {
  Entry **buckets;
  size_t keys;
  bench::Random random{0};

  size_t length() { return random.between(least, most); }
  Entry **bucket_of(uint64_t key) const { return &buckets[((key * 0x9E3779B97F4A7C15u) >> 32) * keys >> 32]; }

  void fill() {
    // Each key once, in an order that has nothing to do with where its bucket lies.
    for (size_t key = 0; key < keys; ++key) {
      Entry **const bucket = bucket_of(key);
      *bucket = make_entry(key, length(), *bucket);
    }
  }

  void operate(bool write) {
    const uint64_t key = random.below(keys);
    Entry **link = bucket_of(key);
    while ((*link)->key != key) link = &(*link)->next;
    check_entry(*link);
    if (!write) return;
    Entry *const old = *link;
    *link = make_entry(key, length(), old->next);
    free(old);
  }

  void empty() {
    for (size_t i = 0; i < keys; ++i) {
      for (Entry *entry = buckets[i], *next = nullptr; entry != nullptr; entry = next) {
        next = entry->next;
        check_entry(entry);
        free(entry);
      }
    }
  }
};

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&threads, &bytes, &least, &most, &writes, &operations, &seed});
  if (threads == 0 || writes == 0 || least < sizeof(Entry) || most < least || bytes / most < threads * 100)
    bench::die("%s: threads and writes must be at least 1, least 32, most no less, and each thread needs 100 entries",
               argv[0]);
  const size_t keys = bytes / ((least + most) / 2) / threads;
  auto *stripes = bench::map_array<Stripe>(threads);
  for (size_t i = 0; i < threads; ++i) {
    stripes[i].buckets = bench::map_array<Entry *>(keys);
    stripes[i].keys = keys;
    stripes[i].random = bench::Random(seed + i);
  }
  const uint64_t before = bench::rss_bytes();
  bench::Barrier step(threads + 1);
  bench::Threads workers(threads, [&](size_t i) {
    Stripe &stripe = stripes[i];
    step.wait();
    stripe.fill();
    step.wait();
    step.wait();
    for (size_t n = 0; n < operations / threads; ++n) stripe.operate(n % writes == 0);
    step.wait();
    step.wait();
    stripe.empty();
  });
  const auto phase = [&] {
    const uint64_t begin = bench::now_ns();
    step.wait();
    step.wait();
    return bench::seconds_since(begin);
  };
  const double filled = phase(), operated = phase();
  const uint64_t after = bench::rss_bytes();
  step.wait();
  workers.join();
  bench::Json("key_value")
      .number("seconds", filled + operated)
      .number("fill_seconds", filled)
      .number("ns_per_operation", operated * 1e9 / static_cast<double>(operations) * static_cast<double>(threads))
      .count("rss_bytes", after - before)
      .param(threads)
      .param(bytes)
      .param(least)
      .param(most)
      .param(writes)
      .print();
}
