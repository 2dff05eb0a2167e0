// The eight workers: each has a table of small objects and one of big ones, and changes them at random in four moods.
#include <malloc.h>
#include <string.h>

#include "objects.h"

namespace soak {

namespace {

constexpr size_t kSmallSlots = 32768, kBigSlots = 64;
constexpr size_t kMoodSteps = 30000;

// `there` is false while its owner changes it: the child of a fork finds whole objects only.
struct Slot {
  Object object;
  std::atomic<bool> there;
};
struct Table {
  Slot small[kSmallSlots];
  Slot big[kBigSlots];
  size_t held;  // bytes asked for
};
Table tables[kWorkers];

enum class Mood { kEven, kGrow, kShrink, kExchange };

class Worker {
 public:
  explicit Worker(unsigned number)
      : number_(number), random_(settings.seed, number), table_(tables[number]), count_(counts[number]) {}

  void step() {
    if (steps_++ % kMoodSteps == 0) mood_ = static_cast<Mood>(random_.below(4));
    const bool big = random_.one_in(300);
    Slot& slot = big ? table_.big[random_.below(kBigSlots)] : table_.small[random_.below(kSmallSlots)];
    if (slot.there.load(std::memory_order_relaxed)) {
      change(slot, big);
    } else if (mood_ != Mood::kShrink || random_.one_in(4)) {
      put(slot, make(random_, size(big), count_));
    }
    if (steps_ % 8 == 0 || mood_ == Mood::kExchange) take_in();
    if (settings.sabotage != 0 && number_ == 3 && steps_ > 3000) sabotage(slot);
  }

  void drain(bool everything) {
    Object object;
    while (receive(number_, object)) release(random_, object, count_);
    if (!everything) return;
    for (Slot& slot : table_.small) empty(slot);
    for (Slot& slot : table_.big) empty(slot);
  }

 private:
  size_t size(bool big) {
    const size_t wanted = big ? big_size(random_) : small_size(random_);
    return table_.held + wanted <= settings.worker_bytes ? wanted : 1 + random_.below(64);
  }

  void put(Slot& slot, const Object& object) {
    slot.object = object;
    table_.held += object.size;
    slot.there.store(true, std::memory_order_release);
  }

  Object take(Slot& slot) {
    slot.there.store(false, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // before anything happens to the object
    table_.held -= slot.object.size;
    return slot.object;
  }

  void empty(Slot& slot) {
    if (slot.there.load(std::memory_order_relaxed)) release(random_, take(slot), count_);
  }

  void change(Slot& slot, bool big) {
    const size_t kind = random_.below(16);
    if (mood_ == Mood::kGrow && kind < 12) {
      verify(slot.object);
    } else if (mood_ == Mood::kExchange ? kind < 12 : kind < 3) {
      const Object object = take(slot);
      if (!send(static_cast<unsigned>(random_.below(kWorkers)), object)) release(random_, object, count_);
    } else if (kind < 6) {
      Object object = take(slot);
      resize(object, random_.one_in(2) ? size(big) : near(object.size), count_);
      put(slot, object);
    } else if (kind < 7) {
      verify(slot.object);
    } else {
      empty(slot);
    }
  }

  // A little more or less, as what grows step by step asks for.
  size_t near(size_t size) {
    const size_t wanted = size / 2 + 1 + random_.below(size);
    return table_.held + wanted <= settings.worker_bytes ? wanted : 1 + size / 2;
  }

  // Objects of others: kept if there is a place, else freed here.
  void take_in() {
    Object object;
    for (unsigned i = 0; i < 4 && receive(number_, object); ++i) {
      Slot& slot =
          object.size > kSmallMost ? table_.big[random_.below(kBigSlots)] : table_.small[random_.below(kSmallSlots)];
      const bool room = table_.held + object.size <= settings.worker_bytes;
      if (room && random_.one_in(2) && !slot.there.load(std::memory_order_relaxed)) {
        verify(object);
        put(slot, object);
      } else {
        release(random_, object, count_);
      }
    }
  }

  // The soak must find these.
  void sabotage(const Slot& slot) {
    if (settings.sabotage == 'w' && slot.there.load(std::memory_order_relaxed)) {
      slot.object.at[slot.object.size / 2] ^= 1;
    } else if (settings.sabotage == 'l' && steps_ % 64 == 0) {
      void* const lost = malloc(4096);
      if (lost != nullptr) memset(lost, 1, 4096);
    } else if (settings.sabotage == 'h') {
      for (;;) pause_us(1000000);
    }
  }

  const unsigned number_;
  Random random_;
  Table& table_;
  Count& count_;
  Mood mood_ = Mood::kEven;
  size_t steps_ = 0;
};

Worker* workers[kWorkers];

}  // namespace

void work(unsigned number) {
  memset(static_cast<void*>(&tables[number]), 0, sizeof(Table));  // resident from here on
  Worker worker(number);
  workers[number] = &worker;
  for (;;) {
    if (should_rest()) rest([](unsigned n, bool everything) { workers[n]->drain(everything); }, number);
    worker.step();
    counts[number].steps.fetch_add(1, std::memory_order_relaxed);
  }
}

void visit_workers_objects(Random& random, void (*visit)(Random& random, const Object& object)) {
  for (Table& table : tables) {
    for (Slot& slot : table.big) {
      if (slot.there.load(std::memory_order_acquire) && random.one_in(16)) visit(random, slot.object);
    }
    for (size_t i = random.below(256); i < kSmallSlots; i += 1 + random.below(256)) {
      Slot& slot = table.small[i];
      if (slot.there.load(std::memory_order_acquire)) visit(random, slot.object);
    }
  }
}

}  // namespace soak
