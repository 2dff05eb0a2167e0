#include "cache/cpu_cache.h"

#include "cache/depot.h"
#include "config/options.h"
#include "os/os.h"
#include "space/large.h"
#include "space/metadata.h"

namespace folio {

constinit Atomic<CpuCache*> cpu_caches[kCpusMost];

namespace {

// 0: not asked yet, 1: no, 2: yes.
constinit Atomic<int> transactions{0};

FOLIO_NOINLINE int look_for_transactions() {
  const int known = arch::Transaction::has() ? 2 : 1;
  transactions.store(known, order::relaxed);  // relaxed: every thread computes the same
  return known;
}

bool use_transactions() {
  const int known = transactions.load(order::relaxed);  // relaxed: as above
  return (__builtin_expect(known != 0, true) ? known : look_for_transactions()) == 2;
}

FOLIO_NOINLINE CpuCache* make_cache(Atomic<CpuCache*>& entry) {
  auto* fresh = static_cast<CpuCache*>(metadata_alloc(sizeof(CpuCache)));
  CpuCache* found = nullptr;
  // [cpu-cache] acq_rel: publishes nothing but zeros; the loser's copy of a race is lost.
  return fresh == nullptr || entry.compare_exchange(found, fresh, order::acq_rel) ? fresh : found;
}

CpuCache* current_cache() {
  if (options.cpu_cache == 0) return nullptr;
  Atomic<CpuCache*>& entry = cpu_caches[os::cpu() % kCpusMost];
  CpuCache* cache = entry.load(order::acquire);  // [cpu-cache] acquire: pairs with make_cache
  return __builtin_expect(cache != nullptr, true) ? cache : make_cache(entry);
}

void count_busy(CpuCache& cache) { cache.busy.fetch_add(1, order::relaxed); }  // relaxed: a statistic

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

// Copies a small magazine's objects into the one that waits first, if they fit.
bool merge(CpuCache& cache, BinId bin, Magazine* magazine) {
  CpuList& list = cache.lists[index(bin)];
  const unsigned n = magazine->count();
  Magazine* const first = list.top();
  if (first == nullptr || n >= kWholeLeast || first->count() + n > info_of(bin).magazine_most) return false;
  first->take_from(magazine, n);
  list.add_objects(n);
  list.idle = 0;
  cache.bytes += uint64_t{n} * info_of(bin).size;
  return true;
}

// As cpu_cache_get, from this cache alone.
Magazine* remove_some(CpuCache& cache, BinId bin, unsigned want, Magazine* into) {
  CpuList& list = cache.lists[index(bin)];
  Magazine* const first = list.top();
  if (first == nullptr || want >= kWholeLeast || first->count() <= want) return remove(cache, bin);
  first->give_to(into, want);
  list.add_objects(-want);
  list.idle = 0;
  cache.bytes -= uint64_t{want} * info_of(bin).size;
  return into;
}

// *bytes: of the objects in the bundle.
Magazine* remove_all(CpuCache& cache, BinId bin, int64_t* bytes) {
  CpuList& list = cache.lists[index(bin)];
  Magazine* bundle = list.top();
  if (bundle == nullptr) return nullptr;
  bundle->set_bundle_length(list.magazines);
  *bytes = int64_t{list.objects.load(order::relaxed)} * info_of(bin).size;  // relaxed: inside the section
  cache.bytes -= static_cast<uint64_t>(*bytes);
  list.clear();
  return bundle;
}

// Returns what is to be told to the depot now, or 0.
int64_t note_to_depot(CpuCache& cache, BinId bin, int64_t bytes) {
  int64_t& noted = cache.to_depot[depot_small(bin)];
  noted += bytes;
  if (const int64_t step = account_step(); noted < step && noted > -step) return 0;
  const int64_t told = noted;
  noted = 0;
  return told;
}

// Outside the section. What lies first came from another core's cache, or is long cold.
void prefetch_first(CpuCache& cache, BinId bin) {
  if (Magazine* first = cache.lists[index(bin)].top()) first->prefetch();
}

}  // namespace

Magazine* cpu_cache_put(BinId bin, Magazine* magazine, const char* function) {
  CpuCache* cache = current_cache();
  Magazine* bundle = nullptr;
  int64_t bytes = 0, told = 0;
  bool merged = false;
  const unsigned most = bundle_most(bin);
  const uint64_t budget = static_cast<uint64_t>(options.cpu_cache) << 10;
  magazine->set_capacity(kMagazineObjects);
  const bool ran = cache != nullptr && cache->section.run(use_transactions(), [&] {
    merged = merge(*cache, bin, magazine);
    if (!merged) add(*cache, bin, magazine);
    if (cache->lists[index(bin)].magazines <= most && cache->bytes <= budget) return;
    bundle = remove_all(*cache, bin, &bytes);
    told = note_to_depot(*cache, bin, bytes);
  });
  if (!ran) {
    if (cache != nullptr) count_busy(*cache);
    magazine->set_next(nullptr);
    magazine->set_bundle_length(1);
    bundle = magazine;
    told = bytes = bundle_bytes(bin, bundle);
  }
  if (bundle != nullptr) depot_push(bin, bundle, bytes, function);
  if (told != 0) depot_count(depot_small(bin), told);
  return merged ? magazine : nullptr;
}

Magazine* cpu_cache_get(BinId bin, unsigned want, Magazine* into) {
  CpuCache* cache = current_cache();
  Magazine* magazine = nullptr;
  if (cache != nullptr &&
      !cache->section.run(use_transactions(), [&] { magazine = remove_some(*cache, bin, want, into); })) {
    count_busy(*cache);
  }
  if (magazine != nullptr) {
    prefetch_first(*cache, bin);
    return magazine;
  }
  Magazine* bundle = depot_pop(bin);
  if (bundle == nullptr) return nullptr;
  // A bundle goes into the cache, as far as its budget reaches, and is served from there; where that is busy, its first
  // magazine, or as much of it as is wanted, is the answer. What is left goes back to the depot.
  const uint64_t budget = static_cast<uint64_t>(options.cpu_cache) << 10;
  unsigned length = bundle->bundle_length();
  int64_t told = 0;
  Magazine* rest = bundle;
  const bool ran = cache != nullptr && cache->section.run(use_transactions(), [&] {
    const uint64_t before = cache->bytes;
    do {
      Magazine* const next = rest->next();
      add(*cache, bin, rest);
      rest = next;
      --length;
    } while (rest != nullptr && cache->bytes <= budget);
    told = note_to_depot(*cache, bin, -static_cast<int64_t>(cache->bytes - before));
    magazine = remove_some(*cache, bin, want, into);
  });
  if (!ran) {
    if (cache != nullptr) count_busy(*cache);
    told = -bundle_bytes(bin, bundle);
    if (want < kWholeLeast && bundle->count() > want) {
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
    if (!ran) told += bytes;
    rest->set_bundle_length(length);
    depot_push(bin, rest, bytes, "free");
  }
  if (told != 0) depot_count(depot_small(bin), told);
  if (cache != nullptr) prefetch_first(*cache, bin);
  return magazine;
}

void* cpu_cache_pop_one(BinId bin, Magazine** emptied) {
  CpuCache* cache = current_cache();
  void* object = nullptr;
  *emptied = nullptr;
  if (cache == nullptr) return nullptr;
  const bool ran = cache->section.run(use_transactions(), [&] {
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
  if (!ran) count_busy(*cache);
  if (*emptied != nullptr) prefetch_first(*cache, bin);
  return object;
}

bool cpu_cache_push_one(BinId bin, void* object) {
  CpuCache* cache = current_cache();
  bool pushed = false;
  if (cache == nullptr) return false;
  const uint64_t budget = static_cast<uint64_t>(options.cpu_cache) << 10;
  const bool ran = cache->section.run(use_transactions(), [&] {
    CpuList& list = cache->lists[index(bin)];
    Magazine* const first = list.top();
    if (first == nullptr || first->count() >= info_of(bin).magazine_most || cache->bytes > budget) return;
    Slot* const top = first->top() - 1;
    *top = object;
    first->park(top);
    list.add_objects(1);
    cache->bytes += info_of(bin).size;
    list.idle = 0;
    pushed = true;
  });
  if (!ran) count_busy(*cache);
  return pushed;
}

void* cpu_cache_get_large(unsigned granules) {
  CpuCache* cache = current_cache();
  void* object = nullptr;
  if (cache == nullptr) return nullptr;
  const bool ran = cache->section.run(use_transactions(), [&] {
    LargeList& list = cache->large;
    for (unsigned i = list.count; i-- != 0;) {
      const uint32_t has = list.granules[i];
      if (has < granules || has - granules > granules / 8) continue;
      object = list.object[i];
      list.bytes -= uint64_t{has} << kGranuleShift;
      list.idle = 0;
      --list.count;
      for (; i < list.count; ++i) {
        list.object[i] = list.object[i + 1];
        list.granules[i] = list.granules[i + 1];
      }
      return;
    }
  });
  if (!ran) count_busy(*cache);
  return object;
}

namespace {

// The objects that were in a list and have to go.
struct LargeGone {
  void* object[LargeList::kMost];
  unsigned count;
  void give() const {
    for (unsigned i = 0; i < count; ++i) large_give(object[i]);
  }
};

// Takes out the first `n`, inside the section.
void remove_oldest(LargeList& list, unsigned n, LargeGone* gone) {
  gone->count = n;
  for (unsigned i = 0; i < list.count; ++i) {
    if (i < n) {
      gone->object[i] = list.object[i];
      list.bytes -= uint64_t{list.granules[i]} << kGranuleShift;
    } else {
      list.object[i - n] = list.object[i];
      list.granules[i - n] = list.granules[i];
    }
  }
  list.count = static_cast<uint16_t>(list.count - n);
}

}  // namespace

bool cpu_cache_put_large(void* parked, unsigned granules) {
  CpuCache* cache = current_cache();
  LargeGone gone{};
  const uint64_t budget = static_cast<uint64_t>(options.cpu_cache) << 10, bytes = uint64_t{granules} << kGranuleShift;
  if (cache == nullptr || bytes > budget / 4) {
    large_give(parked);
    return false;
  }
  const bool ran = cache->section.run(use_transactions(), [&] {
    LargeList& list = cache->large;
    unsigned n = 0;
    for (uint64_t rest = list.bytes; list.count - n == LargeList::kMost || rest + bytes > budget; ++n) {
      rest -= uint64_t{list.granules[n]} << kGranuleShift;
    }
    if (n != 0) remove_oldest(list, n, &gone);
    list.object[list.count] = parked;
    list.granules[list.count] = granules;
    list.bytes += bytes;
    list.idle = 0;
    ++list.count;
  });
  if (!ran) {
    count_busy(*cache);
    large_give(parked);
  }
  gone.give();
  return ran && gone.count == 0;
}

unsigned cpu_caches_trim(bool all) {
  unsigned drained = 0;
  for (auto& entry : cpu_caches) {
    CpuCache* cache = entry.load(order::acquire);  // [cpu-cache] acquire: pairs with make_cache
    if (cache == nullptr) continue;
    for (unsigned i = 1; i < kBins; ++i) {
      Magazine* bundle = nullptr;
      int64_t bytes = 0;
      cache->section.run(false, [&] {
        CpuList& list = cache->lists[i];
        if (list.top() == nullptr) return;
        if (all || ++list.idle >= 2) bundle = remove_all(*cache, bin_id(i), &bytes);
      });
      for (Magazine* next = nullptr; bundle != nullptr; bundle = next) {
        next = bundle->next();
        magazine_drain(bin_id(i), bundle, "free");
        ++drained;
      }
    }
    LargeGone gone{};
    cache->section.run(false, [&] {
      LargeList& list = cache->large;
      if (list.count != 0 && (all || ++list.idle >= 2)) remove_oldest(list, list.count, &gone);
    });
    gone.give();
    drained += gone.count;
  }
  return drained;
}

void cpu_caches_after_fork() {
  for (auto& entry : cpu_caches) {
    CpuCache* cache = entry.load(order::acquire);  // [cpu-cache] acquire: pairs with make_cache
    if (cache == nullptr) continue;
    cache->large.count = 0;
    cache->large.bytes = 0;
    if (!cache->section.held()) continue;
    // Its lists may be half changed. Losing what they hold, at most the budget, beats mending what cannot be checked.
    cache->bytes = 0;
    cache->to_depot[0] = cache->to_depot[1] = 0;
    for (CpuList& list : cache->lists) list.clear();
    cache->section.forget_holder();
  }
  large_give_parked();
}

uint64_t cpu_caches_objects(BinId bin) {
  uint64_t objects = 0;
  for (auto& entry : cpu_caches) {
    CpuCache* cache = entry.load(order::acquire);  // [cpu-cache] acquire: pairs with make_cache
    if (cache != nullptr) objects += cache->lists[index(bin)].objects.load(order::relaxed);  // relaxed: a statistic
  }
  return objects;
}

uint64_t cpu_caches_busy() {
  uint64_t busy = 0;
  for (auto& entry : cpu_caches) {
    CpuCache* cache = entry.load(order::acquire);                    // [cpu-cache] acquire: pairs with make_cache
    if (cache != nullptr) busy += cache->busy.load(order::relaxed);  // relaxed: a statistic
  }
  return busy;
}

}  // namespace folio
