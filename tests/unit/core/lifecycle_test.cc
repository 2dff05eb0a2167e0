#include "core/lifecycle.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include <atomic>
#include <thread>

#include "cache/thread_caches.h"
#include "core/realloc.h"
#include "os/os.h"
#include "space/large.h"
#include "unit/child.h"
#include "unit/core/heap.h"

using namespace folio;
using namespace folio_test;

namespace {

TEST(Lifecycle, StartedBeforeMain) {
  EXPECT_EQ(seam_mode.load(order::acquire), kOpen);
  start();
  start_slow();  // once is enough
  EXPECT_EQ(seam_mode.load(order::acquire), kOpen);
}

// Options are read at start, so a new process is needed: this program again, with one test.
TEST(Lifecycle, OptionsComeFromTheEnvironment) {
  if (const char* text = getenv("FOLIO_TEST_INNER")) {
    EXPECT_STREQ(text, "1");
    EXPECT_EQ(options.decay, 77);
    EXPECT_EQ(options.errors, kErrorsWarn);
    return;
  }
  setenv("FOLIO_TEST_INNER", "1", 1);
  setenv("FOLIO_OPTIONS", "decay:77,errors:warn,decai:3", 1);
  const std::string self = FOLIO_TEST_EMULATOR " " + testing::internal::GetArgvs()[0];
  const std::string command = self + " --gtest_filter=Lifecycle.OptionsComeFromTheEnvironment 2>&1 >/dev/null";
  FILE* const reported = popen(command.c_str(), "r");
  unsetenv("FOLIO_TEST_INNER");
  unsetenv("FOLIO_OPTIONS");
  ASSERT_NE(reported, nullptr);
  char line[300] = {};
  EXPECT_NE(fgets(line, sizeof line, reported), nullptr);
  EXPECT_STREQ(line, "folio: FOLIO_OPTIONS: unknown option \"decai\"; did you mean \"decay\"? (see docs/options.md)\n");
  EXPECT_EQ(pclose(reported), 0);
}

// Allocates, resizes and frees some of everything.
bool works() {
  bool good = true;
  for (unsigned round = 0; round < 20; ++round) {
    std::vector<void*> objects;
    for (const size_t size : edge_sizes()) {
      if (size > 3 * kMiB) continue;
      objects.push_back(alloc(size));
      if (objects.back() == nullptr) return false;
      memset(objects.back(), 1, std::min(size, 4096ul));
    }
    for (void*& object : objects) {
      object = reallocate(object, 1, 500, "test");
      good = good && object != nullptr;
    }
    for (void* object : objects) free_object(object);
  }
  return good;
}

TEST(Lifecycle, AChildOfOneThreadGoesOn) {
  void* const object = alloc(100);
  fill(object, 100, 1);
  EXPECT_EQ(in_child([&] {
              if (!filled(object, 100, 1)) return kFailed;
              free_object(object);
              return works() && thread_count() == 1 ? kPassed : kFailed;
            }),
            kPassed);
  EXPECT_TRUE(filled(object, 100, 1));
  free_object(object);
}

TEST(Lifecycle, AChildOfManyThreadsGoesOnAndLosesLittle) {
  if (kEmulated) GTEST_SKIP() << "the emulator's threads make the child look as if a handler had started some";
  std::atomic<bool> stop{false};
  std::atomic<unsigned> ready{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      void* held[64] = {};
      ++ready;
      while (!stop) {
        void*& object = held[random() % 64];
        free_object(object);
        object = alloc(random() % (random() % 50 == 0 ? 100000 : 2000));
      }
      for (void* object : held) free_object(object);
    });
  }
  while (ready != 4) std::this_thread::yield();
  free_object(alloc(100));  // so that this thread has a cache
  for (unsigned i = 0; i < rounds(40); ++i) {
    const int result = in_child([] {
      options.housekeeper = kHousekeeperOff;  // an emulator's own thread would call for one, which it cannot start here
      if (thread_count() != 1) return kFailed;
      if (!works()) return kFailed;
      collect_everything("test");
      for (const BinId bin : all_bins()) {
        // What the others held is theirs for ever, and so is at most one object each in flight; what they cached is
        // not.
        if (thread_cache_objects(thread_cache(), bin) + cpu_caches_objects(process_caches, bin) +
                depot_objects(process_caches.depot, bin) !=
            0)
          return kFailed;
      }
      return kPassed;
    });
    ASSERT_EQ(result, kPassed) << "fork " << i;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

// Where the system does not say how many threads run, as without /proc, each that had a cache is asked for: the child
// finds out that it is alone, and gives back what the others had parked.
TEST(Lifecycle, AChildWithoutProcKnowsThatItIsAlone) {
  if (kEmulated) GTEST_SKIP() << "the emulator has threads of its own";
  const int result = in_child([] {
    if (!filter_call(SYS_newfstatat, SECCOMP_RET_ERRNO | ENOENT)) return kCannot;
    if (os::thread_total() != 0) return kFailed;
    std::atomic<unsigned> step{0};
    std::thread other([&step] {
      free_object(alloc(100000));
      step = 1;
      while (step != 2) std::this_thread::yield();
    });
    while (step != 1) std::this_thread::yield();
    const bool parked = large_stats(process_fields).parked != 0;
    const int inner = in_child([] { return large_stats(process_fields).parked == 0 && works() ? kPassed : kFailed; });
    step = 2;
    other.join();
    return parked ? inner : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters of system calls here";
  EXPECT_EQ(result, kPassed);
}

TEST(Lifecycle, AChildOfAChild) {
  EXPECT_EQ(in_child([] { return in_child([] { return works() && thread_count() == 1 ? kPassed : kFailed; }); }),
            kPassed);
}

}  // namespace
