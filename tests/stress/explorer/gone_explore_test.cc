// Who looks into another thread's cursors, while that thread begins, ends, or leaves without a word and its storage
// becomes something else: statistics, the search for caches whose thread is gone, and the child of a fork.
//
// Afterwards each cache serves one thread, or waits for one, and what is lost is what the threads that left had.
#include <gtest/gtest.h>

#include "stress/explorer/cache_scenario.h"

namespace explorer {
namespace {

using namespace folio;
using Life = Machine::Life;

// A thread that has objects, and a magazine with some more.
void begin(CacheScenario& s, unsigned i) {
  s.machine.prepare(i, [&] {
    s.program[i].allocate(s.bin, 6);
    s.program[i].release(s.bin, 3);
  });
}
Body find_gone(unsigned checks) {
  return [checks] { thread_caches_find_gone(checks); };
}
Body allocate(CacheScenario& s, unsigned i) {
  return [&s, i] { s.program[i].allocate(s.bin, 1); };
}
Body end(CacheScenario& s, Life storage) {
  return [&s, storage] {
    thread_cache_end(thread_state.cache);
    s.machine.turn(storage);
  };
}
Body count() {
  return [] {
    uint64_t objects[kBins] = {};
    thread_caches_objects(objects);
  };
}

TEST(ExploreGone, SearchesForCachesWhileThreadsBegin) {
  CacheScenario s(3);
  s.thread([] { thread_cache(); });
  s.thread([] { thread_cache(); });
  s.thread(find_gone(3));
  s.expect_sound("gone: two begin, one looks");
}

TEST(ExploreGone, SearchesForCachesWhileThreadsEnd) {
  CacheScenario s(3);
  begin(s, 0);
  s.thread(end(s, Life::kUnmapped));
  s.thread(find_gone(2));
  s.thread([] { thread_cache(); });
  s.expect_sound("gone: one ends, one looks, one begins");
}

// The end is told, and the next life begins in the same storage, with the same cache maybe.
TEST(ExploreGone, StorageIsUsedAgainAfterAnEnd) {
  CacheScenario s(2);
  begin(s, 0);
  s.thread([&s] {
    thread_cache_end(thread_state.cache);
    s.machine.turn(Life::kGone);
    s.machine.live_anew();
    thread_cache();
  });
  s.thread(find_gone(2));
  s.expect_sound("gone: one ends, and another begins in its storage; one looks");
}

// The end is not told: the cache that led here is found by its owner.
TEST(ExploreGone, StorageIsUsedAgainWithoutAnEnd) {
  CacheScenario s(3);
  begin(s, 0);
  s.allow_lost(kMagazineObjects);
  s.thread([&s] {
    s.machine.turn(Life::kGone);
    s.machine.live_anew();
    thread_cache();
  });
  s.thread(find_gone(2));
  s.thread([] { thread_cache(); });
  s.expect_sound("gone: one leaves, another begins in its storage; one looks, one begins");
}

TEST(ExploreGone, TwoSearchAtOnce) {
  CacheScenario s(3);
  begin(s, 2);
  s.allow_lost(kMagazineObjects);
  s.machine.set_life(2, Life::kUnmapped);
  s.thread(find_gone(2));
  s.thread(find_gone(2));
  s.thread([] { thread_cache(); });
  s.expect_sound("gone: one has left, two look, one begins");
}

TEST(ExploreGone, StatisticsWhileThreadsEnd) {
  CacheScenario s(3);
  begin(s, 0);
  s.thread(end(s, Life::kUnmapped));
  s.thread(count());
  s.thread(allocate(s, 2));
  s.expect_sound("statistics: one ends, one counts, one begins");
}

TEST(ExploreGone, StatisticsWhileStorageIsUsedAgain) {
  CacheScenario s(2);
  begin(s, 0);
  s.allow_lost(kMagazineObjects);
  s.thread([&s] {
    s.machine.turn(Life::kGone);
    s.machine.live_anew();
    s.program[0].allocate(s.bin, 1);
  });
  s.thread(count());
  s.expect_sound("statistics: one leaves, another begins in its storage; one counts");
}

// ---- Fork ----

// What core/lifecycle.cc does in the child, where the thread that forks is alone.
void handle_fork() {
  cpu_caches_after_fork(process_caches, process_fields, true);
  thread_caches_after_fork(true);
}

// A thread without a part in the scenario forks, wherever the others are.
TEST(ExploreFork, WhileOthersOverflowRefillAndEnd) {
  constexpr unsigned kForks = 3;
  CacheScenario s(kForks);
  begin(s, 0);
  begin(s, 1);
  begin(s, kForks);
  s.before_verdict = [&s] {
    for (unsigned i = 0; i < kForks; ++i) s.machine.now_is(i, Life::kGone);
    s.machine.as(kForks, handle_fork);
  };
  s.thread([&s] {
    s.program[0].allocate(s.bin, 12);
    s.program[0].release(s.bin, 12);
  });
  s.thread([] { thread_cache_end(thread_state.cache); });
  s.thread([&s] {
    s.program[2].allocate(s.bin, 5);
    s.program[2].release(s.bin, 5);
  });
  s.expect_little_lost_by_fork("fork: while others run over and dry, begin and end", 3 * kMagazineObjects);
}

// A handler that ran before Folio's has started threads in the child. Of the parent's threads one had a cache.
TEST(ExploreFork, TheChildIsNotAlone) {
  CacheScenario s(3);
  begin(s, 0);
  begin(s, 3);
  s.machine.set_life(3, Life::kGone);
  s.allow_lost(kMagazineObjects);
  s.thread([] {
    cpu_caches_after_fork(process_caches, process_fields, false);
    thread_caches_after_fork(false);
  });
  s.thread(allocate(s, 1));
  s.thread(find_gone(2));
  s.expect_sound("fork: the child's handler, a thread that begins, one that looks");
}

// The same, where the storage of the parent's thread is not there any more, so that the other one finds it gone, too.
TEST(ExploreFork, TheChildIsNotAloneAndStorageIsGone) {
  CacheScenario s(2);
  begin(s, 3);
  s.machine.set_life(3, Life::kUnmapped);
  s.allow_lost(kMagazineObjects);
  s.thread([] { thread_caches_after_fork(false); });
  s.thread(find_gone(2));
  s.expect_sound("fork: the child's handler, and one that looks for the same cache");
}

// A cache that waited serves a thread of the child's: its number is another one now.
TEST(ExploreFork, TheChildIsNotAloneAndTakesAnOldCache) {
  CacheScenario s(2);
  s.machine.prepare(3, [] { thread_cache_end(thread_cache()); });
  s.machine.set_life(3, Life::kGone);
  s.thread([] { thread_caches_after_fork(false); });
  s.thread([] { thread_cache(); });
  s.expect_sound("fork: the child's handler, and one that begins with an old cache");
}

}  // namespace
}  // namespace explorer
