// Puts magazines into the current CPU's cache and takes them out; if the section is busy, goes on to the depot.
#include "cache/cpu_cache.h"

#include "cache/validate.h"
#include "config/options.h"
#include "os/os.h"
#include "space/metadata.h"
#include "store/give.h"
#include "sync/relaxed.h"

namespace folio {

constinit CpuCaches process_caches{};
constinit __thread unsigned cpu_cache_work = 0;

namespace {

// 0: not asked yet, 1: no, 2: yes.
constinit Hint<int> transactions{0};
constinit MetadataSeldom new_caches;

FOLIO_NOINLINE int detect_transactions() {
  transactions.set(arch::Transaction::has() ? 2 : 1);
  return transactions.get();
}

// How often a cache's flag must be found held before the cache uses transactions. A transaction takes 20 ns where the
// flag takes 12 (Emerald Rapids, a short body), but a preempted thread never holds it. (Two CPUs: of the tries of 2
// threads 0.005 % find the flag held, of 16 threads 1.6 %, of 64 threads 5 to 40 %, with transactions 0.02 %; for 64
// threads transactions make programs 2 to 25 % faster, elsewhere 0 to 11 % slower.)
constexpr uint64_t kBusyToTransact = 100;

bool use_transactions(const CpuCache& cache) {
  if (__builtin_expect(cache.busy.load(order::relaxed) < kBusyToTransact, true)) return false;  // relaxed: a hint
  const int known = transactions.get();
  return (known != 0 ? known : detect_transactions()) == 2;
}

// Runs the body in the cache's section, unless that is busy.
template <class Body>
FOLIO_INLINE bool run_in(CpuCache& cache, Body&& body) {
  const CpuCacheWork work;
  const bool ran = cache.section.run(use_transactions(cache), body);
  if (!ran) cache.busy.fetch_add(1, order::relaxed);  // relaxed: a statistic
  return ran;
}

FOLIO_NOINLINE CpuCache* make_cache(CpuCaches& caches, Atomic<CpuCache*>& entry) {
  auto* fresh = new_caches.waits() ? nullptr : static_cast<CpuCache*>(new_caches.alloc(sizeof(CpuCache)));
  CpuCache* found = nullptr;
  if (fresh == nullptr) return nullptr;
  // [cpu-cache] release: publishes only zeros, and that they are committed. The loser of a race loses its copy.
  if (!entry.compare_exchange(found, fresh, order::release)) {
    // [cpu-cache] acquire: pairs with the winner's compare_exchange. unseen: the two copies are mostly of one committed
    // step of metadata
    return entry.load(order::acquire);
  }
  caches.depot.cpus.add(1);
  return fresh;
}

FOLIO_INLINE CpuCache* current_cache(CpuCaches& caches) {
  if (options.cpu_cache == 0) return nullptr;
  Atomic<CpuCache*>& entry = caches.of_cpu[os::cpu() % kCpusMost];
  CpuCache* cache = entry.load(order::acquire);  // [cpu-cache] acquire: pairs with make_cache
  return __builtin_expect(cache != nullptr, true) ? cache : make_cache(caches, entry);
}

constexpr uint64_t kSpareShare = 16;
// One cache's budget for objects of bins, and the least of the budgets below.
uint64_t small_budget(const CpuCaches& caches) {
  const auto budget = static_cast<uint64_t>(options.cpu_cache) << 10;
  return caches.sparing.get() ? budget / kSpareShare : budget;
}

// The budget for large objects; and for those of bins while the process has one thread, whose excess would go to the
// folios: cycles of groups, 8 MB live, take 0.88 of the time in 1.07 times the memory.
uint64_t budget_by_residency(const CpuCaches& caches) {
  const uint64_t least = small_budget(caches);
  return caches.sparing.get() ? least : LargeList::budget_of_one(least, caches.depot.cpus.get());
}

// ---- Inside the section ----

void add(CpuCache& cache, BinId bin, Magazine* magazine) {
  CpuList& list = cache.lists[index(bin)];
  const unsigned objects = magazine->count();
  magazine->set_next(list.top());
  list.set_top(magazine);
  list.magazines = static_cast<uint16_t>(list.magazines + 1);
  list.add_objects(objects);
  list.idle = 0;
  cache.bytes += uint64_t{objects} * info_of(bin).size;
}

Magazine* remove(CpuCache& cache, BinId bin) {
  CpuList& list = cache.lists[index(bin)];
  Magazine* magazine = list.top();
  if (magazine == nullptr) return nullptr;
  const unsigned objects = magazine->count();
  list.set_top(magazine->next());
  list.magazines = static_cast<uint16_t>(list.magazines - 1);
  list.add_objects(-objects);
  list.idle = 0;
  cache.bytes -= uint64_t{objects} * info_of(bin).size;
  return magazine;
}

// Copies the objects of a magazine with fewer than kWholeLeast into the list's first one, if they fit.
bool merge(CpuCache& cache, BinId bin, Magazine* magazine) {
  CpuList& list = cache.lists[index(bin)];
  const unsigned n = magazine->count();
  Magazine* const first = list.top();
  if (first == nullptr || n >= kWholeLeast || first->count() + n > first->bottom()) return false;
  first->take_from(magazine, n);
  list.add_objects(n);
  list.idle = 0;
  cache.bytes += uint64_t{n} * info_of(bin).size;
  return true;
}

// Whether a thread that wants `want` objects gets the whole magazine: at most twice as many, which bounds what a thread
// caches.
bool goes_whole(Magazine* magazine, unsigned want) {
  const unsigned n = magazine->count();
  return n <= want || (want >= kWholeLeast && n <= 2 * want);
}

// Does what cpu_cache_get does, from this cache alone.
Magazine* remove_some(CpuCache& cache, BinId bin, unsigned want, Magazine* into) {
  CpuList& list = cache.lists[index(bin)];
  Magazine* const first = list.top();
  if (first == nullptr || goes_whole(first, want)) return remove(cache, bin);
  first->give_to(into, want);
  list.add_objects(-want);
  list.idle = 0;
  cache.bytes -= uint64_t{want} * info_of(bin).size;
  return into;
}

constexpr unsigned kMagazinesMost = 200;  // in one bundle: bundle_length has 8 bits

// Removes the list's magazines as a bundle, at most kMagazinesMost, except the first ones, which stay as long as they
// hold up to `keep` objects together. Null if all stay.
Magazine* remove_behind(CpuCache& cache, BinId bin, unsigned keep, int64_t* bytes) {
  CpuList& list = cache.lists[index(bin)];
  Magazine *last = nullptr, *bundle = list.top();
  unsigned kept = 0, magazines = 0;
  const auto stays = [&] { return kept + bundle->count() <= keep || list.magazines - magazines > kMagazinesMost; };
  for (; bundle != nullptr && stays(); bundle = bundle->next(), ++magazines) {
    kept += bundle->count();
    last = bundle;
  }
  if (bundle == nullptr) return nullptr;
  const unsigned gone = list.objects.load(order::relaxed) - kept;  // relaxed: inside the section
  bundle->set_bundle_length(list.magazines - magazines);
  *bytes = int64_t{gone} * info_of(bin).size;
  cache.bytes -= static_cast<uint64_t>(*bytes);
  last != nullptr ? last->set_next(nullptr) : list.set_top(nullptr);
  list.magazines = static_cast<uint16_t>(magazines);
  list.add_objects(-gone);
  return bundle;
}

// Removes what a list that has just grown has too much, as a bundle, or returns null.
//   shared depot: beyond a bundle's worth     the whole list, for the depot
//   one thread:   that, and pins_pages        the whole list, for the folios
//                 beyond half of the budget   the older half, at most kAtOnce objects, for the folios
// What is over the cache's budget, or kListMost, is beyond either; a walk finds the older half (with lists of 2,000
// magazines a free took 10 ns in place of 5). Of small objects pins_pages is asked at each fourth magazine, for 3 % of
// a tree's instructions; larger ones at each, else growing strings took 1.12 of the time. (The rule for one thread:
// trees of 500 to 30,000 nodes in 0.63 of the time; giving 16,384 objects back took 0.26 ms.)
Magazine* remove_excess(const CpuCaches& caches, CpuCache& cache, BinId bin, int64_t* bytes) {
  constexpr unsigned kAtOnce = 4096, kListMost = 400, kLookEvery = 4;
  const CpuList& list = cache.lists[index(bin)];
  const unsigned objects = list.objects.load(order::relaxed);  // relaxed: inside the section
  const bool shared = caches.depot.shared.get();
  const uint64_t budget = shared ? small_budget(caches) : budget_by_residency(caches);
  const bool over = cache.bytes > budget || list.magazines > kListMost;
  if (list.magazines <= kBundleMost && objects <= bundle_objects(bin) && !over) return nullptr;
  const bool often = over || list.magazines <= kBundleMost || info_of(bin).size > kManyLargest;
  const bool look = often || list.magazines % kLookEvery == 1;
  if (shared || (look && pins_pages(list.top(), objects))) return remove_behind(cache, bin, 0, bytes);
  if (objects * uint64_t{info_of(bin).size} <= budget / 2 && !over) return nullptr;
  return remove_behind(cache, bin, objects - (objects / 2 < kAtOnce ? objects / 2 : kAtOnce), bytes);
}

// Adds bytes to those that the depot has not counted yet. Returns their sum for depot_count; 0 below account_step().
int64_t note_to_depot(CpuCache& cache, BinId bin, int64_t bytes) {
  int64_t& noted = cache.to_depot[depot_small(bin)];
  noted += bytes;
  if (const int64_t step = account_step(); noted < step && noted > -step) return 0;
  const int64_t flushed = noted;
  noted = 0;
  return flushed;
}

// Prefetches the list's first magazine, which came from another core's cache or is long cold. Outside the section.
void prefetch_first(CpuCache& cache, BinId bin) {
  if (Magazine* first = cache.lists[index(bin)].top()) first->prefetch();
}

}  // namespace

Magazine* cpu_cache_put(CpuCaches& caches, BinId bin, Magazine* magazine, const char* function) {
  CpuCache* cache = current_cache(caches);
  Magazine* bundle = nullptr;
  int64_t bytes = 0, flushed = 0;
  bool merged = false;
  // Makes room in a small magazine, so that others can be merged into it.
  if (magazine->count() < kWholeLeast) magazine->set_capacity(info_of(bin).magazine_most);
  const bool ran = cache != nullptr && run_in(*cache, [&] {
                     merged = merge(*cache, bin, magazine);
                     if (!merged) add(*cache, bin, magazine);
                     bundle = remove_excess(caches, *cache, bin, &bytes);
                     if (bundle != nullptr) flushed = note_to_depot(*cache, bin, bytes);
                   });
  if (!ran) {
    // Few objects are not worth a place in the depot.
    if (magazine->count() < kWholeLeast && 2 * magazine->count() < info_of(bin).magazine_most) {
      give_objects(bin, magazine->top(), magazine->count(), function);
      return magazine;
    }
    magazine->set_next(nullptr);
    magazine->set_bundle_length(1);
    bundle = magazine;
    flushed = bytes = bundle_bytes(bin, bundle);
  }
  if (bundle != nullptr) depot_push(caches.depot, bin, bundle, bytes, function);
  if (flushed != 0) depot_count(caches.depot, depot_small(bin), flushed);
  return merged ? magazine : nullptr;
}

Magazine* cpu_cache_get(CpuCaches& caches, BinId bin, unsigned want, Magazine* into) {
  CpuCache* cache = current_cache(caches);
  Magazine* magazine = nullptr;
  if (cache != nullptr) run_in(*cache, [&] { magazine = remove_some(*cache, bin, want, into); });
  if (magazine != nullptr) {
    prefetch_first(*cache, bin);
    return magazine;
  }
  Magazine* bundle = depot_pop(caches.depot, bin);
  if (bundle == nullptr) return nullptr;
  // The bundle goes into the cache, up to its budget, and the call is served from there; if the cache is busy, from the
  // bundle's first magazine. What is left goes back to the depot.
  const uint64_t budget = small_budget(caches);
  unsigned length = bundle->bundle_length();
  int64_t flushed = 0;
  Magazine* rest = bundle;
  const bool ran = cache != nullptr && run_in(*cache, [&] {
                     const uint64_t before = cache->bytes;
                     do {
                       Magazine* const next = rest->next();
                       add(*cache, bin, rest);
                       rest = next;
                       --length;
                     } while (rest != nullptr && cache->bytes <= budget);
                     flushed = note_to_depot(*cache, bin, -static_cast<int64_t>(cache->bytes - before));
                     magazine = remove_some(*cache, bin, want, into);
                   });
  if (!ran) {
    flushed = -bundle_bytes(bin, bundle);
    if (!goes_whole(bundle, want)) {
      bundle->give_to(into, want);
      magazine = into;
      rest = bundle;
    } else {
      magazine = bundle;
      rest = bundle->next();
      --length;
    }
  }
  if (rest != nullptr) {
    const int64_t bytes = bundle_bytes(bin, rest);
    if (!ran) flushed += bytes;
    rest->set_bundle_length(length);
    depot_push(caches.depot, bin, rest, bytes, "free");
  }
  if (flushed != 0) depot_count(caches.depot, depot_small(bin), flushed);
  if (cache != nullptr) prefetch_first(*cache, bin);
  return magazine;
}

void* cpu_cache_pop_one(CpuCaches& caches, BinId bin, Magazine** emptied) {
  CpuCache* cache = current_cache(caches);
  void* object = nullptr;
  *emptied = nullptr;
  if (cache == nullptr) return nullptr;
  run_in(*cache, [&] {
    CpuList& list = cache->lists[index(bin)];
    Magazine* const first = list.top();
    if (first == nullptr) return;
    Slot* const top = first->top();
    object = *top;
    first->park(top + 1);
    list.add_objects(-1u);
    cache->bytes -= info_of(bin).size;
    list.idle = 0;
    if (first->count() == 0) *emptied = remove(*cache, bin);
  });
  if (*emptied != nullptr) prefetch_first(*cache, bin);
  return object;
}

Pushed cpu_cache_push_one(CpuCaches& caches, BinId bin, void* object) {
  CpuCache* cache = current_cache(caches);
  Pushed pushed = Pushed::kNo;
  if (cache == nullptr) return pushed;
  run_in(*cache, [&] {
    CpuList& list = cache->lists[index(bin)];
    Magazine* const first = list.top();
    if (first == nullptr) return;
    if (holds(first->top(), first->count(), object)) {
      pushed = Pushed::kTwice;
      return;
    }
    if (first->count() >= first->bottom() || cache->bytes > small_budget(caches)) return;
    Slot* const top = first->top() - 1;
    *top = object;
    first->park(top);
    list.add_objects(1);
    cache->bytes += info_of(bin).size;
    list.idle = 0;
    pushed = Pushed::kYes;
  });
  return pushed;
}

namespace {

// Apart, as most lists are empty then: a look takes 51 instructions in place of 68.
FOLIO_NOINLINE bool list_holds(CpuCache& cache, BinId bin, const void* object) {
  constexpr unsigned kFewMagazines = 4;
  bool found = false;
  run_in(cache, [&] {
    Magazine* magazine = cache.lists[index(bin)].top();
    for (unsigned n = 0; n < kFewMagazines && magazine != nullptr && !found; ++n, magazine = magazine->next()) {
      found = holds(magazine->top(), magazine->count(), object);
    }
  });
  return found;
}

}  // namespace

bool cpu_caches_hold(CpuCaches& caches, BinId bin, const void* object) {
  constexpr unsigned kFewCaches = 8;
  unsigned left = caches.depot.cpus.get() < kFewCaches ? caches.depot.cpus.get() : kFewCaches;
  for (unsigned i = 0; left != 0 && i < kCpusMost; ++i) {
    CpuCache* cache = caches.of_cpu[i].load(order::acquire);  // [cpu-cache] acquire: pairs with make_cache
    if (cache == nullptr) continue;
    --left;
    if (cache->lists[index(bin)].top() != nullptr && list_holds(*cache, bin, object)) return true;
  }
  return false;
}

void* cpu_cache_get_large(CpuCaches& caches, unsigned granules) {
  if (granules > LargeList::kGranulesMost) return nullptr;
  CpuCache* cache = current_cache(caches);
  void* object = nullptr;
  if (cache == nullptr) return nullptr;
  run_in(*cache, [&] { object = cache->large.find(granules); });
  return object;
}

bool cpu_cache_put_large(CpuCaches& caches, void* parked, unsigned granules, LargeNear* near) {
  CpuCache* cache = current_cache(caches);
  LargeGone gone;
  const uint64_t bytes = uint64_t{granules} << kGranuleShift;
  if (cache == nullptr || granules > LargeList::kGranulesMost) {
    // Of one thread all lie in its own core's cache: nothing is won there, and results that stay cost it 1.03 to 1.09
    // of the memory.
    give_parked(parked, caches.depot.shared.get() ? near : nullptr);
    return false;
  }
  const bool ran = run_in(*cache, [&] {
    LargeList& list = cache->large;
    if (list.kept++ % LargeList::kBudgetEvery == 0) list.budget = budget_by_residency(caches);
    if (bytes > list.budget / 4) {
      gone.object[gone.count++] = parked;
      return;
    }
    while (list.used == ~uint64_t{0} || list.bytes + bytes > list.budget)
      gone.object[gone.count++] = list.remove_oldest();
    list.keep(parked, granules);
  });
  if (!ran) give_parked(parked);
  gone.give();
  return ran && gone.count == 0;
}

namespace {

// Drains the bin's list if nobody has used it since the last call, or if `all`, bundle by bundle.
unsigned trim_list(CpuCache& cache, BinId bin, bool all) {
  unsigned drained = 0;
  for (bool more = true; more;) {
    Magazine* bundle = nullptr;
    int64_t bytes = 0;
    run_in(cache, [&] {
      CpuList& list = cache.lists[index(bin)];
      if (list.top() == nullptr) return;
      if (all || ++list.idle >= 2) bundle = remove_behind(cache, bin, 0, &bytes);
    });
    more = bundle != nullptr && bundle->bundle_length() == kMagazinesMost;
    drained += bundle_drain(bin, bundle, "free");
  }
  return drained;
}

}  // namespace

unsigned cpu_caches_trim(CpuCaches& caches, bool all, bool large) {
  unsigned drained = 0;
  for (auto& entry : caches.of_cpu) {
    CpuCache* cache = entry.load(order::acquire);  // [cpu-cache] acquire: pairs with make_cache
    if (cache == nullptr) continue;
    for (unsigned i = 1; i < kBins; ++i) drained += trim_list(*cache, bin_id(i), all);
    if (!large) continue;
    const CpuCacheWork work;
    LargeGone gone;
    run_in(*cache, [&] {
      LargeList& list = cache->large;
      if (list.used == 0 || (!all && ++list.idle < 2)) return;
      while (list.used != 0) gone.object[gone.count++] = list.remove_oldest();
    });
    gone.give();
    drained += gone.count;
  }
  return drained;
}

unsigned cpu_caches_drain_step(CpuCaches& caches, unsigned from, unsigned most, unsigned* drained) {
  constexpr unsigned kLooksMost = 4096;  // at lists, some 50 us
  for (unsigned i = from; i < kCpuListsEnd; ++i) {
    CpuCache* const cache = caches.of_cpu[i / kBins].load(order::acquire);  // [cpu-cache] acquire: as above
    if (cache == nullptr) {
      i += kBins - 1 - i % kBins;
      continue;
    }
    if (*drained >= most || i - from >= kLooksMost) return i;
    // Relaxed: an estimate.
    if (cache->lists[i % kBins].objects.load(order::relaxed) == 0) continue;
    *drained += trim_list(*cache, bin_id(i % kBins), true);
  }
  return kCpuListsEnd;
}

}  // namespace folio
