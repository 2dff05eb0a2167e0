#include "core/clock.h"
#include "core/give_back.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "cache/depot.h"
#include "cache/thread_caches.h"
#include "core/lifecycle.h"
#include "os/os.h"
#include "policy/retain.h"
#include "space/housekeeper.h"
#include "space/huge.h"
#include "unit/cache/magazines.h"
#include "unit/child.h"
#include "unit/core/heap.h"

using namespace folio;
using namespace folio_test;

namespace {

size_t dirty() { return static_cast<size_t>(std::max<int64_t>(0, page_counts.dirty.get())); }

// Those that a sanitizer may have started included.
unsigned threads_of_process() {
  DIR* const directory = opendir("/proc/self/task");
  unsigned n = 0;
  while (const dirent* entry = readdir(directory)) n += entry->d_name[0] != '.' ? 1 : 0;
  closedir(directory);
  return n;
}

// Runs body() on a thread and waits until it is no longer counted either: for a moment after join() it still is.
template <class Body>
void on_a_thread(Body&& body) {
  pid_t id = 0;
  std::thread([&] {
    id = static_cast<pid_t>(syscall(SYS_gettid));
    body();
  }).join();
  const std::string entry = "/proc/self/task/" + std::to_string(id);
  while (access(entry.c_str(), F_OK) == 0) sleep_ms(1);
}

// The same before a test; a sanitizer starts a thread of its own beside the first one.
unsigned threads_before() {
  on_a_thread([] {});
  return threads_of_process();
}

// Memory goes back in calls alone, and not because it is old. Without a housekeeper: a sanitizer's own thread would
// call for one.
void only_calls_purge(int64_t floor_mib) {
  options.housekeeper = kHousekeeperOff;
  options.dirty_floor = floor_mib;
  options.decay = 3600000;
}

// A burst of objects that are all freed again.
void burst(size_t size, size_t bytes) {
  std::vector<void*> objects;
  for (size_t sum = 0; sum < bytes; sum += size) {
    objects.push_back(alloc(size));
    *static_cast<char*>(objects.back()) = 1;
  }
  for (void* object : objects) free_object(object);
}

// Calls that leave the fast path: of a large object.
void slow_calls(unsigned n) {
  for (unsigned i = 0; i < n; ++i) free_object(alloc(200 * kKiB));
}
constexpr size_t kOwn = 256 * kKiB;  // what these keep dirty themselves

// Calls that reach the thread's cache: of more objects than a magazine holds.
void slow_calls_of_bins(unsigned n) {
  const auto activity = [] { return thread_state.cache->activity.get(); };
  free_object(alloc(30 * kKiB));
  for (const uint32_t before = activity(); activity() - before < n;) burst(30 * kKiB, 240 * kKiB);
}

// Polls, for at most some seconds.
bool comes_true(
    const std::function<bool()>& condition, const std::function<void()>& meanwhile = [] {}) {
  for (unsigned i = 0; i < 2000; ++i) {
    if (condition()) return true;
    meanwhile();
    sleep_ms(5);
  }
  return false;
}

class Clock : public ::testing::Test {
 protected:
  ~Clock() override { expect_everything_free(); }

 private:
  SavedOptions saved_;
};

TEST_F(Clock, CollectGivesEverythingBack) {
  for (const size_t size : {size_t{16}, size_t{100}, size_t{3000}, 20 * kKiB, 200 * kKiB, 3 * kMiB})
    burst(size, 8 * kMiB);
  EXPECT_GT(dirty(), 0u);
  const PageDelta delta;
  const size_t collected = collect_everything("test");
  EXPECT_EQ(collected, delta.purged());
  EXPECT_GE(collected, 6 * kMiB);
  EXPECT_EQ(dirty(), 0u);
  EXPECT_EQ(page_counts.resident.get(), 0);
  EXPECT_EQ(huge_reserved_bytes(), 0u) << "address space of huge blocks, too";
  EXPECT_EQ(collect_everything("test"), 0u);
}

TEST_F(Clock, CollectKeepsWhatIsLive) {
  std::vector<void*> objects;
  for (unsigned i = 0; i < 3000; ++i) {
    objects.push_back(alloc(100 + i));
    fill(objects.back(), 100 + i, i);
    free_object(alloc(100 + i));
  }
  collect_everything("test");
  for (unsigned i = 0; i < 3000; ++i) {
    ASSERT_TRUE(filled(objects[i], 100 + i, i));
    free_object(objects[i]);
  }
}

// With a decay of an hour, in a child: the time of the next tick would stay that far off.

TEST_F(Clock, DirtyMemoryStaysUnderItsBoundWithoutAnyTime) {
  options.housekeeper = kHousekeeperOff;  // a sanitizer's own thread would call for one
  options.dirty_floor = 2;
  options.decay = 3600000;
  for (const size_t size : {size_t{16}, size_t{100}, size_t{1000}, size_t{3000}, size_t{5000}, 20 * kKiB}) {
    const int result = in_child([size] {
      burst(size, 32 * kMiB);
      if (dirty() < 24 * kMiB) return kFailed;  // as it may come again; up to 4 MiB are in the CPU cache
      burst(size, 160 * kMiB);
      // What gets a second chance, a step of slack, what a few frees can empty; and what was purged in vain before.
      if (dirty() > static_cast<size_t>(kAgainFirst) + 15 * kMiB) return kFailed;
      forget_recent_live();
      burst(size, 4 * kMiB);  // some calls, in which it goes: no tick does
      return dirty() <= 11 * kMiB ? kPassed : kFailed;
    });
    EXPECT_EQ(result, kPassed) << "after objects of " << size;
  }
}

// Of large and huge objects what was live since the last tick may stay, up to kTolerated.
TEST_F(Clock, LargeObjectsThatWereLiveLatelyAreTolerated) {
  only_calls_purge(2);
  for (const size_t size : {100 * kKiB, 900 * kKiB, 3 * kMiB}) {
    const int result = in_child([size] {
      burst(size, 32 * kMiB);
      if (dirty() < 24 * kMiB) return kFailed;
      burst(size, 256 * kMiB);
      // The floor, what gets a second chance, slack, and what was freed last.
      return dirty() <= static_cast<size_t>(kTolerated) + 14 * kMiB ? kPassed : kFailed;
    });
    EXPECT_EQ(result, kPassed) << "after objects of " << size;
  }
}

// Each of a few huge objects is replaced by turns, or one alone: its pages come back, they do not go and come anew.
TEST_F(Clock, HugeObjectsThatAreReplacedKeepTheirPages) {
  options.housekeeper = kHousekeeperOff;  // as above
  options.decay = 3600000;
  for (const unsigned held : {1u, 3u, 10u}) {
    const int result = in_child([held] {
      constexpr size_t kSize = 20 * kMiB;
      std::vector<void*> objects(held);
      for (unsigned turn = 0; turn < 6; ++turn) {
        for (void*& object : objects) {
          if (object != nullptr) free_object(object);
          object = alloc(kSize);
          for (size_t at = 0; at < kSize; at += 4 * kKiB) static_cast<char*>(object)[at] = 1;
        }
      }
      const uint64_t purged = page_counts.purged.get();
      for (void* object : objects) free_object(object);
      const bool bounded = dirty() <= static_cast<size_t>(kTolerated) + 12 * kMiB;
      return purged == 0 && bounded ? kPassed : kFailed;
    });
    EXPECT_EQ(result, kPassed) << held << " objects";
  }
}

// What the caches hold of a heap that is freed in random order would keep nearly all of its pages.
TEST_F(Clock, CachesDoNotKeepThePagesOfAHeapThatIsGone) {
  only_calls_purge(4);
  const int result = in_child([] {
    std::minstd_rand random(1);
    std::vector<void*> objects;
    for (unsigned i = 0; i < 1000000; ++i) objects.push_back(alloc(16 + random() % 496));
    const int64_t full = live_resident();
    std::shuffle(objects.begin(), objects.end(), random);
    for (void* object : objects) free_object(object);
    return live_resident() < full / 14 ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

// In random order no chunk has a quarter to give for long; then all have.
TEST_F(Clock, WhatIsFreedInRandomOrderKeepsTheBoundToo) {
  only_calls_purge(2);
  const int result = in_child([] {
    std::minstd_rand random(1);
    std::vector<void*> objects;
    for (size_t bytes = 0; bytes < 256 * kMiB;) {
      const size_t size = 600 + random() % 3400;
      objects.push_back(alloc(size));
      bytes += size;
    }
    std::shuffle(objects.begin(), objects.end(), random);
    for (void* object : objects) free_object(object);
    // What may stay for the next turn, the floor, two steps and slack.
    return dirty() <= static_cast<size_t>(kAgainFirst) + 12 * kMiB ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST_F(Clock, ALargeHeapToleratesAQuarterOfWhatIsLive) {
  only_calls_purge(1);
  const int result = in_child([] {
    std::vector<void*> live;
    for (unsigned i = 0; i < 3200; ++i) live.push_back(alloc(20 * kKiB));
    burst(20 * kKiB, 14 * kMiB);
    if (dirty() < 9 * kMiB) return kFailed;  // all of it is tolerated; up to 4 MiB are in the CPU cache
    burst(20 * kKiB, 64 * kMiB);
    if (dirty() < 30 * kMiB) return kFailed;  // it was live lately
    forget_recent_live();
    burst(20 * kKiB, 4 * kMiB);  // some calls, in which it goes
    return dirty() <= 23 * kMiB && dirty() >= 12 * kMiB ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

// Marks of what has aged: chunks that have some, and all of them gone.
unsigned take_aged_marks() {
  unsigned chunks = 0;
  for (const BinId bin : all_bins()) {
    visit_chunks(process_store, bin, [&](Descriptor& d) {
      uint64_t any = 0;
      for (unsigned w = 0; w < kPageWords; ++w) any |= d.aged(w).exchange(0, order::relaxed);
      chunks += any != 0;
      return true;
    });
  }
  return chunks;
}

// A heap of which too much is free, but nowhere a quarter of a chunk: no call looks through all of it.
TEST_F(Clock, ACallChecksFewChunks) {
  only_calls_purge(1);
  const int result = in_child([] {
    constexpr size_t kSize = 20 * kKiB;
    constexpr unsigned kChunks = 6 * kStepChunks;
    options.huge_pages = kHugePagesNever;  // which go as a whole
    std::vector<void*> objects;
    for (unsigned i = 0; i < kChunks * info_of(bin_of(kSize)).objects; ++i) objects.push_back(alloc(kSize));
    for (void* object : objects)  // of twelve of a chunk the second to fourth: 14 whole pages of 61
      if (place_of(object).object - 1 < 3) free_object(object);
    take_aged_marks();  // of the calls above
    forget_recent_live();
    if (dirty_excess() < kMiB) return kFailed;
    const size_t before = dirty();
    for (unsigned call = 0; call < 3; ++call) {
      forget_recent_live();
      clock_after_slow_call();
      const unsigned marked = take_aged_marks();
      if (marked == 0 || marked > 3 * kStepChunks) return kFailed;  // for the bound twice, in a tick once
    }
    if (before - dirty() > 3 * kStepBytes) return kFailed;  // ticks
    // The ticks come by each of them all the same.
    options.decay = 0;
    clock_after_slow_call();
    return dirty() == 0 ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST_F(Clock, UnderTheFloorNothingGoesBeforeItsTime) {
  only_calls_purge(64);
  const int result = in_child([] {
    const PageDelta delta;
    burst(100 * kKiB, 32 * kMiB);
    for (unsigned i = 0; i < 20; ++i) {
      slow_calls(64);
      sleep_ms(5);
    }
    return delta.purged() == 0 && dirty() >= 30 * kMiB ? kPassed : kFailed;  // thread and CPU cache keep 1 MiB each
  });
  EXPECT_EQ(result, kPassed);
}

TEST_F(Clock, WithoutDecayWhatIsFreedGoesInTheCallThatFrees) {
  options.decay = 0;
  for (const size_t size : {100 * kKiB, 900 * kKiB, 3 * kMiB}) {
    void* const object = alloc(size);
    memset(object, 1, size);
    free_object(object);
    EXPECT_EQ(dirty(), 0u) << size;
    sleep_ms(30);  // a tick is due: what the caches kept goes in the next call
  }
}

TEST_F(Clock, SlowCallsRunTheDecay) {
  options.decay = 40;
  options.dirty_floor = 64;
  options.housekeeper = kHousekeeperOff;
  // A tick may come in between, and CPU caches keep some.
  EXPECT_TRUE(comes_true([] {
    burst(100 * kKiB, 16 * kMiB);
    burst(2 * kMiB, 8 * kMiB);
    return dirty() > 8 * kMiB;
  }));
  EXPECT_TRUE(comes_true([] { return dirty() <= kOwn; }, [] { slow_calls(32); })) << dirty();
}

// In steps: two ticks drain 1000 magazines, and no call more than its share of them.
TEST_F(Clock, ATickOfTheProgramsEmptiesTheDepotInSteps) {
  options.decay = 20;
  options.depot = 8192;
  options.housekeeper = kHousekeeperOff;
  const int result = in_child([] {  // a depot that is shared is so for good
    depot_set_shared(process_caches.depot);
    const BinId bin = bin_of(64);
    constexpr unsigned kMagazines = 1000;
    for (unsigned i = 0; i < kMagazines / 4; ++i) {
      Magazine* const bundle = bundle_of(bin, 4, 62);
      depot_count(process_caches.depot, true, bundle_bytes(bin, bundle));
      depot_push(process_caches.depot, bin, bundle, bundle_bytes(bin, bundle), "test");
    }
    uint64_t before = depot_objects(process_caches.depot, bin), most = 0;
    if (before != kMagazines * 62u) return 1;
    const auto call = [&] {
      slow_calls(1);
      const uint64_t now = depot_objects(process_caches.depot, bin);
      most = std::max(most, before - now);
      before = now;
    };
    if (!comes_true([&] { return before == 0; }, call)) return 2;
    // A malloc and a free.
    if (most < kStepMagazines * 62u || most > 2 * (kStepMagazines + 3) * 62u) return 3;
    return taken_objects(bin) == 0 ? kPassed : 4;
  });
  EXPECT_EQ(result, kPassed);
}

// Wherever the count of the thread cache's slow calls happens to stand.
TEST_F(Clock, SlowCallsOfLargeObjectsAloneRunTheDecay) {
  options.decay = 20;
  options.dirty_floor = 64;
  options.housekeeper = kHousekeeperOff;
  for (const unsigned stand : {0u, 5u, 15u}) {
    EXPECT_TRUE(comes_true([=] {
      while (thread_state.cache == nullptr || thread_state.cache->activity.get() % 16 != stand) {
        slow_calls_of_bins(1);
      }
      burst(100 * kKiB, 8 * kMiB);
      return dirty() > 4 * kMiB;
    }));
    EXPECT_TRUE(comes_true([] { return dirty() <= 2 * kOwn; }, [] { slow_calls(4); })) << stand << ": " << dirty();
  }
}

TEST_F(Clock, IdleCachesAreDrainedByTicks) {
  options.decay = 40;
  options.housekeeper = kHousekeeperOff;
  burst(100, 4 * kMiB);
  const BinId bin = bin_of(100);
  EXPECT_GT(bin_stats(bin).cached, 0u);
  EXPECT_TRUE(comes_true(
      [&] { return cpu_caches_objects(process_caches, bin) + depot_objects(process_caches.depot, bin) == 0; },
      [] { slow_calls(32); }));
  // A sweep of the thread's own cache comes after a thousand slow calls.
  EXPECT_TRUE(comes_true([&] { return bin_stats(bin).cached == 0; }, [] { slow_calls_of_bins(500); }));
}

// Where a housekeeper may run, in a child: it stays, and reads the options at any time.
template <class Body>
bool holds_in_child(Body&& body) {
  return in_child([&] {
           body();
           return ::testing::Test::HasFailure() ? kFailed : kPassed;
         }) == kPassed;
}

TEST_F(Clock, OffMeansNoHousekeeper) {
  options.decay = 20;
  options.housekeeper = kHousekeeperOff;
  const unsigned threads = threads_before();
  EXPECT_FALSE(clock_start_housekeeper());
  on_a_thread([] { burst(100 * kKiB, 16 * kMiB); });
  slow_calls(64);
  EXPECT_EQ(threads_of_process(), threads);
}

// The program may hold any lock there.
TEST_F(Clock, NoMallocOrFreeStartsAHousekeeper) {
  options.decay = 20;
  for (const int64_t when : {kHousekeeperAuto, kHousekeeperOn}) {
    options.housekeeper = when;
    EXPECT_TRUE(holds_in_child([] {
      std::atomic<bool> stop{false};
      std::thread other([&] {
        while (!stop) sleep_ms(1);
      });
      const unsigned threads = threads_of_process();
      burst(100 * kKiB, 16 * kMiB);
      slow_calls(64);
      sleep_ms(50);
      slow_calls(64);
      EXPECT_EQ(threads_of_process(), threads);
      stop = true;
      other.join();
    }));
  }
}

// Another thread, which never allocates, until the object dies.
class OtherThread {
 public:
  OtherThread()
      : thread_([this] {
          while (!stop_) sleep_ms(1);
        }) {}
  ~OtherThread() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

bool until_threads(unsigned n) {
  return comes_true([=] { return threads_of_process() == n; });
}

TEST_F(Clock, AHousekeeperSleepsUntilThereIsSomethingToDo) {
  options.decay = 40;
  EXPECT_TRUE(holds_in_child([] {
    const OtherThread other;
    const unsigned threads = threads_before();
    EXPECT_TRUE(clock_start_housekeeper());
    EXPECT_TRUE(clock_start_housekeeper()) << "one is enough";
    EXPECT_EQ(threads_of_process(), threads + 1);
    EXPECT_TRUE(comes_true([] { return housekeeper_sleeps(); }));
    slow_calls(64);
    EXPECT_TRUE(housekeeper_sleeps()) << "little to give back";
    for (unsigned round = 0; round < 3; ++round) {
      burst(100 * kKiB, 16 * kMiB);
      burst(2 * kMiB, 8 * kMiB);
      EXPECT_FALSE(housekeeper_sleeps());
      // And then without a call.
      EXPECT_TRUE(comes_true([] { return dirty() <= kOwn; })) << dirty();
      EXPECT_TRUE(comes_true([] { return housekeeper_sleeps(); }));
      EXPECT_FALSE(timekeeper_runs()) << "the calls keep the bound while it sleeps";
    }
    EXPECT_EQ(threads_of_process(), threads + 1);
  }));
}

TEST_F(Clock, TheHousekeeperLeavesWithTheOtherThreads) {
  if (os::thread_total() == 0) GTEST_SKIP() << "no /proc here";
  EXPECT_TRUE(holds_in_child([] {
    on_a_thread([] {});
    const unsigned alone = threads_of_process();
    if (alone != 1) return;  // a sanitizer's own thread stays
    for (unsigned round = 0; round < 3; ++round) {
      {
        const OtherThread other;
        EXPECT_TRUE(clock_start_housekeeper());
        burst(100 * kKiB, 16 * kMiB);
        sleep_ms(100);
        EXPECT_EQ(threads_of_process(), 3u);
      }
      EXPECT_TRUE(until_threads(1));
      EXPECT_FALSE(timekeeper_runs());
      EXPECT_LE(dirty_over_bound(), 0u);
    }
  }));
}

TEST_F(Clock, OneThatIsWantedAlwaysStays) {
  options.housekeeper = kHousekeeperOn;
  options.decay = 20;
  EXPECT_TRUE(holds_in_child([] {
    clock_start_housekeeper_if_on();
    on_a_thread([] { burst(100, kMiB); });
    const unsigned threads = threads_of_process();
    sleep_ms(300);
    EXPECT_EQ(threads_of_process(), threads);
    EXPECT_GE(threads, 2u);
  }));
}

// Where its time is up and it has not come: stopped, starved, or left behind by a copy of the process that was made
// past the handlers of fork. Here one that never runs.
TEST_F(Clock, WhereTheHousekeeperDoesNotComeTheCallsTakeOver) {
  options.decay = 40;
  options.dirty_floor = 2;
  EXPECT_TRUE(holds_in_child([] {
    const OtherThread other;
    create_threads_by([](pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) { return 0; });
    EXPECT_TRUE(clock_start_housekeeper());
    create_threads_by(pthread_create);
    set_timekeeper(true);  // as its last word
    burst(3000, 16 * kMiB);
    EXPECT_TRUE(comes_true([] { return dirty() <= kOwn; }, [] { slow_calls(32); })) << dirty();
    EXPECT_FALSE(timekeeper_runs());
  }));
}

TEST_F(Clock, ACopyOfTheProcessMayStartItsOwn) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "a sanitizer does not survive the raw call, nor an emulator";
  options.decay = 40;
  EXPECT_TRUE(holds_in_child([] {
    const OtherThread other;
    EXPECT_TRUE(clock_start_housekeeper());
    burst(100 * kKiB, 16 * kMiB);
    const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (child == 0) _exit(clock_start_housekeeper() && until_threads(2) ? kPassed : kFailed);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, kPassed);
  }));
}

TEST_F(Clock, OnServesAProgramThatHasStoppedCalling) {
  options.decay = 40;
  EXPECT_TRUE(holds_in_child([] {
    const unsigned threads = threads_before();
    options.housekeeper = kHousekeeperOn;
    clock_start_housekeeper_if_on();
    EXPECT_TRUE(until_threads(threads + 1));
    for (const size_t size : {size_t{100}, 100 * kKiB, 3 * kMiB}) burst(size, 16 * kMiB);
    // All but the folios that share a page with what this thread's magazines in use hold.
    EXPECT_TRUE(comes_true([] { return dirty() <= kOwn; })) << dirty();
    EXPECT_TRUE(comes_true([] { return bin_stats(bin_of(100)).cached <= kMagazineObjects; }));
  }));
}

TEST_F(Clock, AChildOfAForkHasOneOfItsOwnWhereItIsWantedAlways) {
  const unsigned threads = threads_before();
  options.housekeeper = kHousekeeperOn;
  EXPECT_TRUE(holds_in_child([threads] { EXPECT_EQ(threads_of_process(), threads + 1); }));
}

TEST_F(Clock, AHousekeeperKeepsTheBoundLongBeforeATick) {
  options.decay = 600000;
  options.housekeeper = kHousekeeperOn;
  options.dirty_floor = 8;
  EXPECT_TRUE(holds_in_child([] {
    clock_start_housekeeper_if_on();
    EXPECT_TRUE(comes_true([] { return timekeeper_runs(); }));
    const auto all_stays = [] {
      burst(3000, 64 * kMiB);
      return dirty() > static_cast<int64_t>(40 * kMiB);
    };
    EXPECT_TRUE(comes_true(all_stays)) << "the calls themselves purge nothing, unless the housekeeper looks just then";
    // One look of the housekeeper ages, the next one purges what is too much; a tick would purge all, and later.
    EXPECT_TRUE(comes_true([] { return dirty() <= static_cast<int64_t>(9 * kMiB); }, [] { sleep_ms(100); })) << dirty();
    EXPECT_GT(dirty(), static_cast<int64_t>(4 * kMiB)) << "no more than that, or a huge page";
  }));
}

TEST_F(Clock, AHousekeeperMakesHugePagesOfWhatIsDense) {
  if (!os::huge_pages_come() || kEmulated) GTEST_SKIP() << "no huge pages here";
  options.decay = 40;
  options.housekeeper = kHousekeeperOn;
  EXPECT_TRUE(holds_in_child([] {
    const BinId bin = bin_of(100);
    std::vector<void*> objects;
    for (unsigned i = 0; i < info_of(bin).objects; ++i) objects.push_back(memset(alloc(100), 1, 100));
    Descriptor& d = *place_of(objects[objects.size() / 2]).descriptor;
    char* const probe = static_cast<char*>(os::reserve(kChunkBytes, kChunkBytes));
    EXPECT_TRUE(os::commit(probe, kChunkBytes));
    *probe = 1;
    if (!os::collapse(probe, kChunkBytes)) return;  // Linux before 6.1
    clock_start_housekeeper_if_on();
    EXPECT_TRUE(comes_true([&] { return d.backing() == Backing::kHuge; }));
  }));
}

}  // namespace
