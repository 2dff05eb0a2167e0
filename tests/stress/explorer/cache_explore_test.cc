// Magazines on their way: thread caches, the CPU cache's section, the depot, and the end of a thread.
//
// Afterwards every object of the bin is the program's, in a magazine that somebody can reach, or free: takes = held +
// what draining all caches gives back, and no object twice.
#include <gtest/gtest.h>

#include "stress/explorer/cache_scenario.h"

namespace explorer {
namespace {

using namespace folio;

// ---- CPU cache and depot ----

TEST(ExploreCache, PutAgainstGet) {
  CacheScenario s(3);
  Magazine* const magazines[] = {make_magazine(s.bin, 62), make_magazine(s.bin, 40)};
  for (unsigned i = 0; i < 2; ++i) {
    s.thread([&s, magazines, i] { cpu_cache_put(process_caches, s.bin, magazines[i], "explorer"); });
  }
  s.thread([&s] {
    if (Magazine* got = cpu_cache_get(process_caches, s.bin, kMagazineObjects, nullptr)) empty_into(s.program[2], got);
  });
  s.expect_sound("CPU cache: put, put, get");
}

// The cache is about to overflow: a bundle moves to the depot, or one magazine where the section is busy.
TEST(ExploreCache, BundlesAgainstGet) {
  CacheScenario s(3);
  for (unsigned i = 0; i < bundle_objects(s.bin) / 62; ++i)
    cpu_cache_put(process_caches, s.bin, make_magazine(s.bin, 62), "explorer");
  depot_set_shared(process_caches.depot);
  Magazine* const magazines[] = {make_magazine(s.bin, 62), make_magazine(s.bin, 62)};
  for (unsigned i = 0; i < 2; ++i) {
    s.thread([&s, magazines, i] { cpu_cache_put(process_caches, s.bin, magazines[i], "explorer"); });
  }
  s.thread([&s] {
    for (unsigned n = 0; n < 2; ++n) {
      if (Magazine* got = cpu_cache_get(process_caches, s.bin, kMagazineObjects, nullptr))
        empty_into(s.program[2], got);
    }
  });
  s.expect_sound("CPU cache overflows: put, put, get twice", {.executions = 4000, .random = 500});
}

TEST(ExploreCache, GetFromDepot) {
  CacheScenario s(2);
  depot_set_shared(process_caches.depot);
  for (unsigned i = 0; i < 3; ++i) {
    Magazine* bundle = make_magazine(s.bin, 62);
    bundle->set_next(make_magazine(s.bin, 50));
    bundle->set_bundle_length(2);
    depot_push(process_caches.depot, s.bin, bundle, bundle_bytes(s.bin, bundle), "explorer");
  }
  for (unsigned i = 0; i < 2; ++i) {
    s.thread([&s, i] {
      for (unsigned n = 0; n < 2; ++n) {
        if (Magazine* got = cpu_cache_get(process_caches, s.bin, kMagazineObjects, nullptr))
          empty_into(s.program[i], got);
      }
    });
  }
  s.expect_sound("depot: two get bundles", {.executions = 4000, .random = 500});
}

TEST(ExploreCache, TrimAgainstPutAndGet) {
  CacheScenario s(3);
  depot_set_shared(process_caches.depot);
  cpu_cache_put(process_caches, s.bin, make_magazine(s.bin, 62), "explorer");
  Magazine* const bundle = make_magazine(s.bin, 62);
  bundle->set_bundle_length(1);
  depot_push(process_caches.depot, s.bin, bundle, bundle_bytes(s.bin, bundle), "explorer");
  Magazine* const magazine = make_magazine(s.bin, 20);
  s.thread([] {
    cpu_caches_trim(process_caches, true);
    depot_trim(process_caches.depot, true);
  });
  s.thread([&s, magazine] { cpu_cache_put(process_caches, s.bin, magazine, "explorer"); });
  s.thread([&s] {
    if (Magazine* got = cpu_cache_get(process_caches, s.bin, kMagazineObjects, nullptr)) empty_into(s.program[2], got);
  });
  s.expect_sound("trim, put, get", {.executions = 4000, .random = 500});
}

// What is pushed while it is trimmed is drained, or stays for the next one.
TEST(ExploreCache, TrimAgainstPushers) {
  CacheScenario s(3);
  depot_set_shared(process_caches.depot);
  Magazine* bundles[3];
  for (Magazine*& bundle : bundles) {
    bundle = make_magazine(s.bin, 3);
    bundle->set_bundle_length(1);
  }
  depot_push(process_caches.depot, s.bin, bundles[2], bundle_bytes(s.bin, bundles[2]), "explorer");
  s.thread([] { depot_trim(process_caches.depot, true); });
  for (unsigned i = 0; i < 2; ++i) {
    s.thread([&s, bundle = bundles[i]] {
      depot_push(process_caches.depot, s.bin, bundle, bundle_bytes(s.bin, bundle), "explorer");
    });
  }
  s.expect_sound("depot: trim, push, push");
}

// Threads that do not cache the bin: one object at a time.
TEST(ExploreCache, OneByOne) {
  CacheScenario s(3);
  cpu_cache_put(process_caches, s.bin, make_magazine(s.bin, 1), "explorer");
  for (unsigned i = 0; i < 2; ++i) {
    s.thread([&s, i] {
      Magazine* emptied = nullptr;
      if (void* object = cpu_cache_pop_one(process_caches, s.bin, &emptied))
        s.program[i].list[s.program[i].count++] = object;
      if (emptied != nullptr) {
        emptied->set_next(nullptr);
        magazines_put(emptied);
      }
    });
  }
  s.machine.prepare(2, [&] { s.program[2].allocate(s.bin, 2); });
  s.thread([&s] {
    Program& p = s.program[2];
    void* object = p.list[--p.count];
    if (cpu_cache_push_one(process_caches, s.bin, object) != Pushed::kYes) give_objects(s.bin, &object, 1, "explorer");
  });
  s.expect_sound("CPU cache: pop one, pop one, push one", {.executions = 4000});
}

// ---- Shards ----

Magazine* make_bundle(BinId bin, unsigned n) {
  Magazine* bundle = make_magazine(bin, n);
  bundle->set_bundle_length(1);
  return bundle;
}

// Each logical thread on a CPU of a shard of its own: one takes from any, two give to shards that are new.
TEST(ExploreShards, GivesAgainstATake) {
  CacheScenario s(3);
  depot_set_shared(process_caches.depot);
  folio_test::cpu_of_thread = [] { return kShardCpus * Machine::running(); };
  Magazine* const bundles[] = {make_bundle(s.bin, 62), make_bundle(s.bin, 40)};
  s.thread([&s] {
    if (Magazine* got = depot_pop(process_caches.depot, s.bin)) empty_into(s.program[0], got);
  });
  for (unsigned i = 0; i < 2; ++i) {
    s.thread([&s, bundles, i] {
      depot_push(process_caches.depot, s.bin, bundles[i], bundle_bytes(s.bin, bundles[i]), "explorer");
    });
  }
  s.expect_sound("depot: three shards, take, give, give");
  folio_test::cpu_of_thread = nullptr;
}

TEST(ExploreShards, CachesOfSeveralShards) {
  CacheScenario s(3);
  depot_set_shared(process_caches.depot);
  folio_test::cpu_of_thread = [] { return kShardCpus * Machine::running(); };
  for (unsigned i = 0; i < 3; ++i) {
    Magazine* bundle = make_bundle(s.bin, 20 + i);
    depot_push(process_caches.depot, s.bin, bundle, bundle_bytes(s.bin, bundle), "explorer");
  }
  Magazine* const magazine = make_magazine(s.bin, 62);
  s.thread([] { depot_trim(process_caches.depot, true); });
  s.thread([&s] {
    for (unsigned n = 0; n < 2; ++n) {
      if (Magazine* got = cpu_cache_get(process_caches, s.bin, kMagazineObjects, nullptr))
        empty_into(s.program[1], got);
    }
  });
  s.thread([&s, magazine] {
    cpu_cache_put(process_caches, s.bin, magazine, "explorer");
    if (Magazine* got = cpu_cache_get(process_caches, s.bin, kMagazineObjects, nullptr)) empty_into(s.program[2], got);
  });
  s.expect_sound("three shards: trim, get twice, put and get", {.executions = 4000, .random = 500});
  folio_test::cpu_of_thread = nullptr;
}

TEST(ExploreShards, EmptyMagazines) {
  CacheScenario s(3);
  folio_test::cpu_of_thread = [] { return kShardCpus * Machine::running(); };
  Magazine* const full[] = {make_magazine(s.bin, 3), make_magazine(s.bin, 5), make_magazine(s.bin, 7)};
  for (unsigned i = 0; i < 3; ++i) {
    s.thread([&s, full, i] {
      bundle_drain(s.bin, full[i], "explorer");
      Magazine* const mine = magazines_get();
      if (mine != nullptr) magazines_put(mine);
    });
  }
  s.expect_sound("pools of empty magazines: give, take, give");
  folio_test::cpu_of_thread = nullptr;
}

// ---- Threads ----

// A thread with a full magazine in use.
void fill_cache(CacheScenario& s, unsigned i) {
  s.machine.prepare(i, [&] {
    Program& p = s.program[i];
    ThreadCache* const cache = thread_cache();
    const BinCache& b = cache->budget.bins[index(s.bin)];
    while (b.capacity != info_of(s.bin).magazine_most ||
           reinterpret_cast<uintptr_t>(thread_cursors.cursor[index(s.bin)]) % kMagazineBytes != 0) {
      if (p.count < 4 * kMagazineObjects) p.allocate(s.bin, 8 * kMagazineObjects);
      p.release(s.bin, 1);
    }
  });
}

TEST(ExploreCache, OverflowAgainstRefill) {
  CacheScenario s(2);
  fill_cache(s, 0);
  s.machine.prepare(1, [&] { s.program[1].allocate(s.bin, 70); });
  s.thread([&s] { s.program[0].release(s.bin, 1); });
  s.thread([&s] { s.program[1].allocate(s.bin, 130); });
  s.expect_sound("overflow, refill", {.executions = 4000, .random = 500});
}

TEST(ExploreCache, EndAndBirth) {
  CacheScenario s(3);
  for (unsigned i = 0; i < 2; ++i) {
    s.machine.prepare(i, [&] { s.program[i].allocate(s.bin, 3); });
    s.thread([] { thread_cache_end(thread_state.cache); });
  }
  s.thread([&s] {
    s.program[2].allocate(s.bin, 1);
    s.program[2].release(s.bin, 1);
  });
  s.expect_sound("two threads end, one begins", {.executions = 4000, .random = 500});
}

// Two threads begin, for whom no cache waits, while a third one looks through all caches.
TEST(ExploreCache, Births) {
  CacheScenario s(3);
  static unsigned found;
  for (unsigned i = 0; i < 2; ++i) s.thread([] { thread_cache(); });
  s.thread([] {
    for (const ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) ++found;
  });
  s.and_check([]() -> std::string {
    found = 0;
    for (const ThreadCache* c = thread_caches_first(); c != nullptr; c = c->next_all) ++found;
    return found >= 2 ? "" : "a cache is forgotten";
  });
  s.expect_sound("two threads begin, one looks through the caches", {.executions = 4000});
}

// A CPU's cache is made while others trim, or count.
TEST(ExploreCache, ANewCpuCache) {
  const auto first_put = [](CacheScenario& s, Magazine* magazine) {
    s.thread([&s, magazine] { cpu_cache_put(process_caches, s.bin, magazine, "explorer"); });
  };
  CacheScenario trimmed(2);
  first_put(trimmed, make_magazine(trimmed.bin, 3));
  trimmed.thread([] { cpu_caches_trim(process_caches, true); });
  trimmed.expect_sound("a new CPU cache; trim", {.executions = 2000, .random = 100});
  CacheScenario counted(2);
  first_put(counted, make_magazine(counted.bin, 3));
  counted.thread([&counted] {
    cpu_caches_objects(process_caches, counted.bin);
    cpu_caches_pin(process_caches);
    cpu_caches_busy(process_caches);
    void* const other = &counted;
    cpu_caches_hold(process_caches, counted.bin, other);
    depot_objects(process_caches.depot, counted.bin);
  });
  counted.expect_sound("a new CPU cache; statistics", {.executions = 2000, .random = 100});
  CacheScenario depot(2);
  depot_set_shared(process_caches.depot);
  Magazine* const bundle = make_bundle(depot.bin, 5);
  depot.thread([&depot, bundle] {
    depot_push(process_caches.depot, depot.bin, bundle, bundle_bytes(depot.bin, bundle), "explorer");
  });
  depot.thread([&depot] { depot_objects(process_caches.depot, depot.bin); });
  depot.expect_sound("depot: a push; statistics", {.executions = 2000, .random = 100});
}

// ---- A thread vanishes ----

// At most: a magazine of its own, one in its hand, and what the section that it stopped in guards.
constexpr unsigned kOwn = 2 * kMagazineObjects;

TEST(Vanish, InOverflowAndRefill) {
  CacheScenario s(2);
  fill_cache(s, 0);
  fill_cache(s, 1);
  s.thread([&s] {
    s.program[0].release(s.bin, 1);
    s.program[0].release(s.bin, 62);
  });
  s.thread([&s] { s.program[1].allocate(s.bin, 130); });
  s.expect_little_lost("overflow, refill, with a thread that vanishes",
                       kOwn + bundle_objects(s.bin) + kMagazineObjects);
}

}  // namespace
}  // namespace explorer
