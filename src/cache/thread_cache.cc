// The slow halves of malloc and free: refills an empty magazine and flushes a full one, by way of CPU cache -> depot ->
// folios; sweeps, drains, validates and flushes all that a thread caches.
#include "cache/thread_cache.h"

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_large.h"
#include "cache/validate.h"
#include "config/options.h"
#include "os/os.h"
#include "space/chunk_table.h"
#include "space/housekeeper.h"
#include "space/pages.h"
#include "store/bin.h"
#include "store/misuse.h"
#include "store/occupancy.h"
#include "store/watch.h"
#include "sync/relaxed.h"

namespace folio {

// A magazine that is empty and full at once, in memory that nobody can write to.
alignas(kMagazineBytes) constinit const Slot closed_slots[kMagazineSlots] = {};

namespace {

constexpr ThreadCursors all_closed() {
  ThreadCursors cursors{};
  for (Slot*& cursor : cursors.cursor) cursor = closed_cursor();
  return cursors;
}

constexpr unsigned kSweepCalls = 1024;
constexpr unsigned kEmptiesMost = kEmptyBatch + kEmptyBatch / 2;

// ---- Empty magazines ----

Magazine* get_empty(ThreadCache& c) {
  if (c.empties == nullptr) {
    c.empties = magazines_get();
    for (Magazine* m = c.empties; m != nullptr; m = m->next()) ++c.empty_count;
    if (c.empties == nullptr) return nullptr;
  }
  Magazine* magazine = c.empties;
  c.empties = magazine->next();
  --c.empty_count;
  if (c.empties != nullptr) c.empties->prefetch();
  return magazine;
}

void put_empty(ThreadCache& c, Magazine* magazine) {
  if (c.empty_count == kEmptiesMost) {
    Magazine* last = c.empties;
    for (unsigned i = 1; i < kEmptyBatch; ++i) last = last->next();
    Magazine* const list = c.empties;
    c.empties = last->next();
    last->set_next(nullptr);
    c.empty_count -= kEmptyBatch;
    magazines_put(list);
  }
  magazine->set_next(c.empties);
  c.empties = magazine;
  ++c.empty_count;
}

// ---- Magazines in use ----

void install(BinId bin, Magazine* magazine) {
  magazine->prefetch();
  thread_cursors.cursor[index(bin)] = magazine->top();
}

// Detaches and parks the magazine in use; null if there is none.
Magazine* detach(BinId bin) {
  Slot*& cursor = thread_cursors.cursor[index(bin)];
  if (closed(cursor)) return nullptr;
  Magazine* magazine = Magazine::of(cursor);
  magazine->park(cursor);
  cursor = closed_cursor();
  return magazine;
}

void* pop(BinId bin) {
  Slot*& cursor = thread_cursors.cursor[index(bin)];
  void* object = *cursor;
  ++cursor;
  return object;
}

// Flushes a parked, non-empty magazine to the CPU cache.
void hand_on(ThreadCache& c, BinId bin, Magazine* magazine, const char* function) {
  if (Magazine* empty = cpu_cache_put(process_caches, bin, magazine, function)) put_empty(c, empty);
}

// Validates a magazine that frees have filled, then flushes it.
void validate_and_hand_on(ThreadCache& c, BinId bin, Magazine* magazine, const char* function) {
  validate(bin, magazine, true, function);
  if (magazine->count() != 0) {
    hand_on(c, bin, magazine, function);
  } else {
    put_empty(c, magazine);
  }
}

// Halves the capacity of a bin that was not used since the last sweep, below 2 to 0. Flushes its magazine if that holds
// more objects now, or the capacity is 0.
void sweep_bin(ThreadCache& c, BinId bin) {
  BinCache& b = c.budget.bins[index(bin)];
  const bool used = b.calls != 0;
  b.calls = 0;
  if (used || b.capacity == 0) return;
  thread_budget_shrink(c.budget, bin, b.capacity / 2 < 2 ? 0 : b.capacity / 2);
  Slot* const cursor = thread_cursors.cursor[index(bin)];
  if (closed(cursor)) return;
  Magazine* magazine = Magazine::of(cursor);
  magazine->park(cursor);
  if (magazine->count() <= b.capacity && b.capacity != 0) return;
  detach(bin);
  validate_and_hand_on(c, bin, magazine, "free");
}

FOLIO_NOINLINE void sweep(ThreadCache& c) {
  c.calls_to_sweep = kSweepCalls;
  c.budget.used_up = false;
  for (unsigned i = 1; i < kBins; ++i) sweep_bin(c, bin_id(i));
  thread_sweep_large(c.large);
  thread_budget_return(c.budget, options.thread_cache << 10);
}

void slow_call(ThreadCache& c) {
  c.activity.set(c.activity.get() + 1);  // only the thread writes it
  if (--c.calls_to_sweep == 0) sweep(c);
}

void* take_one(BinId bin) {
  void* object = nullptr;
  return take_objects(process_store, bin, &object, 1) == 1 ? object : nullptr;
}

// Gets one object of a bin that the thread does not cache, from the CPU cache, the depot or the folios.
void* get_one(ThreadCache& c, BinId bin) {
  if (info_of(bin).size > kSmallFirst && watch_wanted(process_store, bin)) return take_one(bin);
  Magazine* magazine;
  void* object = cpu_cache_pop_one(process_caches, bin, &magazine);
  if (magazine != nullptr) put_empty(c, magazine);
  if (object != nullptr) return object;
  Magazine* const empty = get_empty(c);
  if (empty == nullptr) return take_one(bin);
  magazine = cpu_cache_get(process_caches, bin, 1, empty);
  if (magazine == nullptr) {
    magazine = empty;
    const unsigned got = take_objects(process_store, bin, magazine->slot(0), info_of(bin).some);
    magazine->format(got == 0 ? 1 : got);
    magazine->park(magazine->slot(0));
    if (got != 0) object = *magazine->slot(0);
  } else {
    if (magazine != empty) put_empty(c, empty);
    object = *magazine->top();
  }
  if (object != nullptr) magazine->park(magazine->top() + 1);
  if (object != nullptr && magazine->count() != 0) {
    hand_on(c, bin, magazine, "malloc");
  } else {
    put_empty(c, magazine);
  }
  return object;
}

// Puts one object of a bin that the thread does not cache into the CPU cache, the depot or its folio.
void put_one(ThreadCache& c, BinId bin, void* object, const char* function) {
  switch (cpu_cache_push_one(process_caches, bin, object)) {
    case Pushed::kYes:
      return;
    case Pushed::kTwice:
      return report_double_free(function, object, bin);
    case Pushed::kNo:
      break;
  }
  if (Magazine* magazine = get_empty(c)) {
    Slot* const cursor = magazine->format(kMagazineObjects) - 1;
    *cursor = object;
    magazine->park(cursor);
    return hand_on(c, bin, magazine, function);
  }
  give_object(bin, object, function);
}

// Sets a magazine's capacity to the bin's, as room for frees to come, unless it holds more objects.
void make_room(ThreadCache& c, BinId bin, Magazine* magazine) {
  const BinCache& b = c.budget.bins[index(bin)];
  if (magazine->count() <= b.capacity) magazine->set_capacity(b.capacity);
}

bool ascend(const Slot* at, unsigned count) {
  bool ascending = true;
  for (unsigned i = 1; i < count; ++i) ascending &= at[i - 1] < at[i];
  return ascending;
}

// Fills an empty magazine (null: there is no memory for one) from the folios, and pops an object. As a search of the
// folios costs too much for the few objects that a thread with little room can use, it takes more of them and flushes
// the rest to the CPU cache, untouched.
void* fill(ThreadCache& c, BinId bin, Magazine* magazine, unsigned want) {
  if (magazine == nullptr) return take_one(bin);
  const unsigned some = info_of(bin).some;
  Magazine* const small = want < kWholeLeast && want < some ? get_empty(c) : nullptr;
  const unsigned got = take_objects(process_store, bin, magazine->slot(0), small != nullptr ? some : want);
  if (got == 0) {
    put_empty(c, magazine);
    if (small != nullptr) put_empty(c, small);
    return nullptr;
  }
  c.budget.bins[index(bin)].ascent = Ascent::kUnknown;
  magazine->format(got);
  magazine->park(magazine->slot(0));
  if (small != nullptr && got > want) {
    magazine->give_to(small, want);
    hand_on(c, bin, magazine, "malloc");
    magazine = small;
  } else if (small != nullptr) {
    put_empty(c, small);
  }
  make_room(c, bin, magazine);
  install(bin, magazine);
  return pop(bin);
}

}  // namespace

constinit __thread ThreadCursors thread_cursors = all_closed();
constinit __thread ThreadState thread_state = {nullptr, Phase::kNew};

void thread_cache_begin(ThreadCache& c) {
  thread_budget_begin(c.budget);
  c.calls_to_sweep = kSweepCalls;
}

// As long as the bin is watched, no free adds to the magazine, so one glance at its ends tells nearly all frees. (A
// search each time took a third of a watched free.)
bool thread_cache_holds(ThreadCache& c, BinId bin, const void* object) {
  Slot* const cursor = thread_cursors.cursor[index(bin)];
  if (closed(cursor)) return false;
  Magazine* const magazine = Magazine::of(cursor);
  Slot* const end = magazine->slot(magazine->bottom());
  const auto count = static_cast<unsigned>(end - cursor);
  if (count == 0) return false;
  Ascent& ascent = c.budget.bins[index(bin)].ascent;
  if (ascent == Ascent::kUnknown) ascent = ascend(cursor, count) ? Ascent::kYes : Ascent::kNo;
  const bool outside = object < *cursor || object > end[-1];
  return !(ascent == Ascent::kYes && outside && watch_wanted(process_store, bin)) && holds(cursor, count, object);
}

unsigned thread_cache_count_watched(ThreadCache& c, BinId bin) {
  if (watch_counts_each()) return 1;
  uint8_t& frees = c.budget.bins[index(bin)].uncounted;
  if (++frees < kWatchCountEvery) return 0;
  frees = 0;
  return kWatchCountEvery;
}

void* thread_cache_refill(ThreadCache* cache, BinId bin) {
  BinCache& b = cache->budget.bins[index(bin)];
  slow_call(*cache);
  thread_budget_grow(cache->budget, bin, false);
  if (b.capacity == 0) return get_one(*cache, bin);
  const unsigned part = b.capacity >> note_turn(b, false), want = part != 0 ? part : 1;
  Magazine* empty = detach(bin);
  if (empty == nullptr) empty = get_empty(*cache);
  Magazine* const magazine = empty != nullptr ? cpu_cache_get(process_caches, bin, want, empty) : nullptr;
  if (magazine == nullptr) return fill(*cache, bin, empty, want);
  if (empty != magazine) put_empty(*cache, empty);
  b.ascent = Ascent::kNo;
  make_room(*cache, bin, magazine);
  install(bin, magazine);
  return pop(bin);
}

namespace {

constexpr uint32_t kLineBytes = 64;

// Whether the thread's first call for a bin is a free: of an object from another thread, which may go on writing to the
// neighbours on its cache line. Against this passive false sharing [Berger and others, Hoard, ASPLOS 2000] the cache
// gets other objects first, which the thread's next mallocs return.
bool begins_with_free(const ThreadCache& c, BinId bin) {
  const BinCache& b = c.budget.bins[index(bin)];
  return b.calls == 0 && b.capacity == 0 && info_of(bin).size < kLineBytes;
}

// Refills the bin's magazine without popping an object. False if there are no objects, or no magazine.
FOLIO_NOINLINE bool get_others(ThreadCache* cache, BinId bin) {
  cache->budget.bins[index(bin)].ran_over = true;  // so that half a magazine comes
  void* const other = thread_cache_refill(cache, bin);
  Slot*& cursor = thread_cursors.cursor[index(bin)];
  if (other == nullptr || closed(cursor)) {
    if (other != nullptr) give_objects(bin, &other, 1, "free");
    return false;
  }
  // After each store, here and below, a fork finds a cursor that shows valid objects, each of them once.
  Slot* const slot = cursor - 1;
  *slot = other;
  asm volatile("" : : : "memory");
  cursor = slot;
  return true;
}

// Puts the object below other objects, to be popped last. False if there is no room for it.
bool keep_below_others(ThreadCache* cache, BinId bin, void* object) {
  if (!get_others(cache, bin)) return false;
  Slot*& cursor = thread_cursors.cursor[index(bin)];
  Magazine* const magazine = Magazine::of(cursor);
  Slot* const last = magazine->slot(magazine->bottom() - 1);
  Slot* slot = cursor;
  if (slot > magazine->slot(0)) {
    cache->budget.bins[index(bin)].ascent = Ascent::kNo;
    --slot;
    *slot = *last;
    *last = object;
    asm volatile("" : : : "memory");
    cursor = slot;
    return true;
  }
  return false;
}

// Every 17th slow call, if it is an overflow, searches for all duplicates, which costs more than the rest of the
// validation. 17 is a prime, since overflows and refills may alternate: of every 16th call all may be refills.
constexpr unsigned kThoroughChecks = 17;
bool check_thoroughly(const ThreadCache& c) { return c.activity.get() % kThoroughChecks == 0; }

}  // namespace

void thread_cache_overflow(ThreadCache* cache, BinId bin, void* object, const char* function) {
  BinCache& b = cache->budget.bins[index(bin)];
  if (begins_with_free(*cache, bin) && keep_below_others(cache, bin, object)) return;
  slow_call(*cache);
  Slot*& cursor = thread_cursors.cursor[index(bin)];
  thread_budget_grow(cache->budget, bin, true);
  if (b.capacity == 0) return put_one(*cache, bin, object, function);
  b.ascent = Ascent::kNo;
  Magazine* full = detach(bin);
  Magazine* empty = get_empty(*cache);
  // The whole magazine, though half of it may stay: an object that is once in each half would else be missed. (To
  // validate only the half that leaves saves 0.2 % of the instructions of random lifetimes.)
  if (full != nullptr) validate(bin, full, check_thoroughly(*cache), function);
  if (empty == nullptr) {
    // No memory for another: what this one holds goes to the folios, and it stays.
    if (full == nullptr) return give_object(bin, object, function);
    give_objects(bin, full->top(), full->count(), function);
    empty = full;
    full = nullptr;
  }
  const unsigned had = full != nullptr ? full->count() : 0, shift = note_turn(b, true);
  const unsigned stay = had - ((had + (1u << shift) - 1) >> shift);
  const auto pass_on = [&] {
    if (full != nullptr) full->count() != 0 ? hand_on(*cache, bin, full, function) : put_empty(*cache, full);
  };
  Slot* slot = empty->format(b.capacity);
  empty->park(slot);
  if (stay != 0) empty->take_from(full, stay < b.capacity ? stay : b.capacity - 1u);  // of more than the bin's capacity
  pass_on();
  // The object first, then the cursor that shows it: a fork in between must not find the slot's old contents.
  slot = empty->top() - 1;
  *slot = object;
  asm volatile("" : : : "memory");
  cursor = slot;
}

namespace {

// Detaches the bin's magazine, and calls visit(magazine) if it is not empty.
template <class Visit>
void take_bin(ThreadCache& c, BinId bin, Visit&& visit) {
  Magazine* const magazine = detach(bin);
  if (magazine == nullptr) return;
  magazine->count() != 0 ? visit(magazine) : put_empty(c, magazine);
}

void drain(ThreadCache& c, BinId bin, Magazine* magazine, const char* function) {
  give_objects(bin, magazine->top(), magazine->count(), function);
  put_empty(c, magazine);
}

}  // namespace

void thread_cache_drain(ThreadCache* cache, const char* function) {
  for (unsigned i = 1; i < kBins; ++i) {
    take_bin(*cache, bin_id(i), [&](Magazine* m) { drain(*cache, bin_id(i), m, function); });
  }
  // Not where a signal's handler has interrupted work on the list.
  if (cpu_cache_work == 0) thread_release_large(cache->large, LargeTo::kFields);
}

// Of a watched bin not to a CPU cache, where each free would search for its object, which takes 200 instructions.
void thread_cache_hand_on(ThreadCache& c) {
  for (unsigned i = 1; i < kBins; ++i) {
    const BinId bin = bin_id(i);
    take_bin(c, bin, [&](Magazine* m) {
      watch_wanted(process_store, bin) ? drain(c, bin, m, "free") : validate_and_hand_on(c, bin, m, "free");
    });
    thread_budget_shrink(c.budget, bin, 0);
    c.budget.bins[i].calls = 0;
  }
  thread_release_large(c.large, LargeTo::kCpuCache);
  if (c.empties != nullptr) magazines_put(c.empties);
  c.empties = nullptr;
  c.empty_count = 0;
  thread_budget_return(c.budget, 0);
}

void thread_cache_before_free(ThreadCache* cache, BinId bin) {
  if (begins_with_free(*cache, bin)) get_others(cache, bin);
}

void thread_cache_validate(const char* function) {
  for (unsigned i = 1; i < kBins; ++i) {
    Magazine* const magazine = detach(bin_id(i));
    if (magazine == nullptr) continue;
    validate(bin_id(i), magazine, true, function);
    install(bin_id(i), magazine);
  }
}

void thread_cache_forget(ThreadCache& c, bool lost) {
  thread_release_large(c.large, LargeTo::kCpuCache);
  c.empties = nullptr;
  c.empty_count = 0;
  for (unsigned i = 1; i < kBins; ++i) {
    thread_budget_shrink(c.budget, bin_id(i), 0);
    c.budget.bins[i].calls = 0;
  }
  if (lost) thread_budget_lose(c.budget);
  thread_budget_return(c.budget, 0);
}

}  // namespace folio
