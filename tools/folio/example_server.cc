// The server of `make try`: threads parse orders into strings, vectors and maps and hand them on to threads that book
// them and free them. Then the server is idle, holding what it has booked.
//
// Usage: example_server [ORDERS]
//
// On stdout a digest of what was booked, the same for every allocator and every order of events; on stderr one line of
// JSON: "seconds" up to the last order, and "rest_bytes", what is resident two seconds later.
//
// Nothing in it is made for an allocator: the containers are the standard library's, the queue is a lock and a
// condition, as in most servers; an order is some twenty objects of 24 to 400 bytes, which one thread allocates and
// another one frees.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr unsigned kParsers = 2, kBookers = 2;
constexpr size_t kBatch = 64;        // orders handed on at once
constexpr size_t kWaitingMost = 64;  // batches in the queue
constexpr uint64_t kCustomers = 20000;
constexpr unsigned kRestSeconds = 2;

struct Item {
  std::string name;
  uint64_t count, cents;
};

struct Order {
  std::string customer;
  std::unordered_map<std::string, std::string> fields;
  std::vector<Item> items;
};

using Batch = std::vector<std::unique_ptr<Order>>;

class Queue {
 public:
  void put(Batch batch) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return waiting_.size() < kWaitingMost; });
    waiting_.push_back(std::move(batch));
    some_.notify_one();
  }
  // False at the end.
  bool get(Batch *batch) {
    std::unique_lock lock(mutex_);
    some_.wait(lock, [&] { return !waiting_.empty() || ended_; });
    if (waiting_.empty()) return false;
    *batch = std::move(waiting_.back());
    waiting_.pop_back();
    room_.notify_one();
    return true;
  }
  void end() {
    std::unique_lock lock(mutex_);
    ended_ = true;
    some_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable some_, room_;
  std::vector<Batch> waiting_;
  bool ended_ = false;
};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  uint64_t below(uint64_t n) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return (state_ >> 11) % n;
  }

 private:
  uint64_t state_;
};

// What would come from a socket: "c1234;note=...;region=...|sku-17*3@250|sku-4*1@1999|...".
void receive(uint64_t number, std::string *line) {
  static constexpr std::string_view kWords = "amber basin cedar delta ember fjord grove haven inlet jetty knoll ledge ";
  Random random(number);
  *line = "c" + std::to_string(random.below(kCustomers));
  *line += ";note=";
  for (uint64_t left = random.below(300); left != 0;) {
    const uint64_t n = left < kWords.size() ? left : kWords.size();
    line->append(kWords.substr(0, n));
    left -= n;
  }
  *line += ";region=north-by-northwest-" + std::to_string(random.below(40));
  *line += ";channel=a web page of some length";
  for (uint64_t i = 0, n = 1 + random.below(8); i < n; ++i) {
    *line += "|an article with a name, number " + std::to_string(random.below(5000)) + '*' +
             std::to_string(1 + random.below(9)) + '@' + std::to_string(99 + random.below(20000));
  }
}

std::string_view cut(std::string_view *rest, char at) {
  const size_t end = rest->find(at);
  const std::string_view part = rest->substr(0, end);
  rest->remove_prefix(end == std::string_view::npos ? rest->size() : end + 1);
  return part;
}

uint64_t number_of(std::string_view text) {
  uint64_t number = 0;
  for (const char c : text) number = number * 10 + static_cast<uint64_t>(c - '0');
  return number;
}

std::unique_ptr<Order> parse(std::string_view line) {
  auto order = std::make_unique<Order>();
  std::string_view head = cut(&line, '|');
  order->customer = cut(&head, ';');
  while (!head.empty()) {
    std::string_view field = cut(&head, ';');
    const std::string_view key = cut(&field, '=');
    order->fields.emplace(key, field);
  }
  while (!line.empty()) {
    std::string_view item = cut(&line, '|');
    const std::string_view name = cut(&item, '*'), count = cut(&item, '@');
    order->items.push_back({std::string(name), number_of(count), number_of(item)});
  }
  return order;
}

// A booker has its own customers' accounts; which orders it gets depends on the moment, the sum does not.
struct Booked {
  std::unordered_map<std::string, uint64_t> accounts, articles;
};

void book(const Order &order, Booked *booked) {
  uint64_t sum = 0;
  for (const Item &item : order.items) {
    sum += item.count * item.cents;
    booked->articles[item.name] += item.count;
  }
  booked->accounts[order.customer] += sum + order.fields.at("note").size();
}

uint64_t digest_of(const std::unordered_map<std::string, uint64_t> &sums) {
  uint64_t digest = 0;
  for (const auto &[name, sum] : sums) digest += std::hash<std::string>{}(name)*sum;
  return digest;
}

uint64_t resident_bytes() {
  unsigned long size = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  const bool read = file != nullptr && fscanf(file, "%lu %lu", &size, &resident) == 2;
  if (file != nullptr) fclose(file);
  return read ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

int main(int argc, char **argv) {
  const uint64_t orders = argc > 1 ? strtoull(argv[1], nullptr, 10) : 600000;
  const auto begin = std::chrono::steady_clock::now();
  Queue queue;
  std::vector<Booked> booked(kBookers);
  std::vector<std::thread> parsers, bookers;
  for (unsigned i = 0; i < kBookers; ++i) {
    bookers.emplace_back([&queue, own = &booked[i]] {
      for (Batch batch; queue.get(&batch);) {
        for (const auto &order : batch) book(*order, own);
        batch.clear();
      }
    });
  }
  for (unsigned i = 0; i < kParsers; ++i) {
    parsers.emplace_back([&queue, i, orders] {
      Batch batch;
      std::string line;
      for (uint64_t number = i; number < orders; number += kParsers) {
        receive(number, &line);
        batch.push_back(parse(line));
        if (batch.size() == kBatch) queue.put(std::exchange(batch, {}));
      }
      queue.put(std::move(batch));
    });
  }
  for (std::thread &thread : parsers) thread.join();
  queue.end();
  for (std::thread &thread : bookers) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  uint64_t digest = 0;
  for (const Booked &own : booked) digest += digest_of(own.accounts) + 31 * digest_of(own.articles);
  printf("%016llx\n", static_cast<unsigned long long>(digest));
  fflush(stdout);
  sleep(kRestSeconds);
  fprintf(stderr, "{\"seconds\": %.6f, \"rest_bytes\": %llu}\n", seconds.count(),
          static_cast<unsigned long long>(resident_bytes()));
  return 0;
}
