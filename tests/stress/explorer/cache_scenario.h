// A scenario on thread caches, CPU caches and the depot: the program's side of a few logical threads, and what must
// hold once all caches were emptied.
#pragma once

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_caches.h"
#include "stress/explorer/bin_scenario.h"
#include "unit/scripted_cpu.h"

namespace explorer {

using namespace folio;

constexpr unsigned kObjectsMost = 2048;

// One logical thread's side of the program: what it holds, and malloc and free on one bin as the fast path has them.
struct Program {
  void* list[kObjectsMost];
  unsigned count = 0;

  void allocate(BinId bin, unsigned n) {
    for (; n != 0; --n) {
      void* object = pop_cursor(bin);
      if (object == nullptr) object = refill(bin);
      if (object == nullptr) abort();
      list[count++] = object;
      Machine::write_object(object);
    }
  }
  void release(BinId bin, unsigned n) {
    for (; n != 0; --n) {
      void* object = list[--count];
      Machine::write_object(object);
      Slot*& cursor = thread_cursors.cursor[index(bin)];
      if (reinterpret_cast<uintptr_t>(cursor) % kMagazineBytes != 0) {
        *--cursor = object;
      } else if (ThreadCache* cache = thread_cache()) {
        thread_cache_overflow(cache, bin, object, "explorer");
      } else {
        give_objects(bin, &object, 1, "explorer");
      }
    }
  }

 private:
  static void* pop_cursor(BinId bin) {
    Slot*& cursor = thread_cursors.cursor[index(bin)];
    void* object = *cursor;
    if (object != nullptr) ++cursor;
    return object;
  }
  static void* refill(BinId bin) {
    if (ThreadCache* cache = thread_cache()) return thread_cache_refill(cache, bin);
    void* object = nullptr;
    return take_objects(folio::process_store, bin, &object, 1) == 1 ? object : nullptr;
  }
};

class CacheScenario {
 public:
  explicit CacheScenario(unsigned threads) : threads_(threads) {
    folio_test::cpu_of_thread = [] { return 0u; };  // they meet in one CPU cache
    begin_anew();
    options.errors = kErrorsIgnore;  // an object given twice is found by the count
    plan_.reset = [this] {
      world_.reset();
      misuses = 0;
      for (unsigned i = 0; i < threads_; ++i) {
        program[i].count = saved_[i].count;
        memcpy(program[i].list, saved_[i].list, saved_[i].count * sizeof(void*));
      }
    };
    plan_.verdict = [this] { return verdict(); };
  }

  void thread(Body body) { plan_.threads.push_back(std::move(body)); }
  void and_check(std::function<std::string()> check) { check_ = std::move(check); }
  // What has been prepared is what every execution starts with.
  void ready() {
    for (unsigned i = 0; i < threads_; ++i) saved_[i] = program[i];
    world_.save();
  }
  void expect_sound(const char* what, const Limits& limits = {}) {
    ready();
    explorer::expect_sound(explore(machine, plan_, limits), what);
  }
  void expect_little_lost(const char* what, unsigned most) {
    ready();
    most_lost_ = most;
    explorer::expect_sound(vanish(machine, plan_, 1, 5), what);
    printf("    lost at most: %u objects (bound %u)\n", worst_lost_, most);
  }

  // All stop at once, wherever they are; `before_verdict` is what the child of a fork does.
  void expect_little_lost_by_fork(const char* what, unsigned most) {
    ready();
    most_lost_ = most;
    explorer::expect_sound(fork_anywhere(machine, plan_), what);
    printf("    lost at most: %u objects (bound %u)\n", worst_lost_, most);
  }
  void allow_lost(unsigned most) { most_lost_ = most; }

  Body before_verdict;
  Machine machine;
  Program program[Machine::kThreadsMost];
  const BinId bin = aligned_bin(1024, 1024);

 private:
  // Each cache serves one thread, or waits for one.
  std::string caches_verdict() {
    using Idle = TaggedStack<ThreadCache, 6>;
    auto& idle = world_.variable<Idle>("_ZN5folio12_GLOBAL__N_111idle_cachesE");
    std::vector<const ThreadCache*> seen;
    for (ThreadCache* c = idle.top(); c != nullptr; c = c->link.load(order::relaxed)) {
      seen.push_back(c);
      if (seen.size() > 4 * Machine::kThreadsMost) return "caches that wait are in a ring";
      if (c->cursors.load(order::relaxed) != nullptr) return "a cache that waits leads to a thread";
    }
    for (unsigned i = 0; i < Machine::kThreadsMost; ++i) {
      if (!machine.lives(i) || (i < threads_ && !machine.finished(i))) continue;
      const ThreadCache* cache = nullptr;
      machine.as(i, [&] { cache = thread_state.cache; });
      if (cache == nullptr) continue;
      seen.push_back(cache);
      if (cache->cursors.load(order::relaxed) != machine.cursors_of(i))
        return "a live thread's cache does not lead to it";
      if (machine.cursors_of(i)->owner != cache) return "a live thread's cursors have another owner";
    }
    std::sort(seen.begin(), seen.end());
    return std::adjacent_find(seen.begin(), seen.end()) == seen.end() ? "" : "a cache serves two";
  }

  std::string verdict() {
    if (before_verdict != nullptr) before_verdict();
    if (std::string failure = caches_verdict(); !failure.empty()) return failure;
    std::vector<void*> held;
    unsigned missing = 0;
    for (unsigned i = 0; i < threads_; ++i) {
      held.insert(held.end(), program[i].list, program[i].list + program[i].count);
      if (machine.finished(i) && machine.lives(i)) {
        machine.as(i, [] {
          if (thread_state.cache != nullptr) thread_cache_drain(thread_state.cache, "explorer");
        });
      } else {
        ++missing;
      }
    }
    depot_trim(process_caches.depot, true);
    cpu_caches_trim(process_caches, true);
    std::sort(held.begin(), held.end());
    if (std::adjacent_find(held.begin(), held.end()) != held.end()) return "an object was handed out twice";
    for (void* object : held) {
      if (!place_of(object).taken()) return "an object that a thread holds is free";
    }
    const auto taken = taken_objects(bin), known = static_cast<unsigned>(held.size());
    if (misuses != 0) return "an object was given back twice";
    if (check_ != nullptr) {
      if (std::string failure = check_(); !failure.empty()) return failure;
    }
    if (missing == 0 && !check_bin(folio::process_store, bin)) return "check_bin: an invariant does not hold";
    if (missing == 0 && most_lost_ == 0 && taken != known) return "lost: " + std::to_string(taken - known);
    worst_lost_ = std::max(worst_lost_, taken - known);
    return taken - known <= most_lost_ ? "" : "lost with the thread: " + std::to_string(taken - known);
  }

  unsigned threads_;
  Program saved_[Machine::kThreadsMost];
  World world_;
  Plan plan_;
  std::function<std::string()> check_;
  unsigned most_lost_ = 0, worst_lost_ = 0;
};

// A waiting magazine of `n` objects.
inline Magazine* make_magazine(BinId bin, unsigned n) {
  Magazine* magazine = magazines_get();
  if (magazine->next() != nullptr) magazines_put(magazine->next());
  magazine->set_next(nullptr);
  magazine->format(kMagazineObjects);
  Slot* const first = magazine->slot(kMagazineObjects - n);
  for (unsigned got = 0, more; got < n; got += more) {  // a call ends with what an open chunk has left
    more = take_objects(folio::process_store, bin, first + got, n - got);
    if (more == 0) abort();
  }
  magazine->park(first);
  return magazine;
}

// Empties a magazine that is the caller's into what its thread holds.
inline void empty_into(Program& program, Magazine* magazine) {
  for (unsigned i = 0; i < magazine->count(); ++i) program.list[program.count++] = magazine->top()[i];
}

}  // namespace explorer
