// Threads: tiny stacks, very many, destructors that allocate, objects handed from thread to thread.
#include <limits.h>
#include <pthread.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "support.h"

using namespace folio_test;

namespace {

// The same once as little is live: what the housekeeper has just claimed, to give it back, counts as live.
folio_stats stats_with_live(size_t most) {
  folio_stats stats = stats_now();
  for (int i = 0; i < 6000 && stats.live > most; i++) {
    usleep(5000);
    stats = stats_now();
  }
  return stats;
}

// Allocates and frees some of everything; false if anything failed.
bool work(unsigned seed) {
  constexpr size_t kSizes[] = {1, 24, 64, 200, 1000, 5000, 40000, 300000, 2500000};
  void *objects[std::size(kSizes)];
  bool good = true;
  for (size_t i = 0; i < std::size(kSizes); i++) {
    objects[i] = opaque(malloc(kSizes[i]));
    if (objects[i] == nullptr) return false;
    static_cast<char *>(objects[i])[0] = static_cast<char>(seed + i);
    static_cast<char *>(objects[i])[kSizes[i] - 1] = static_cast<char>(seed + i);
  }
  for (size_t i = 0; i < std::size(kSizes); i++) {
    good = good && static_cast<char *>(objects[i])[kSizes[i] - 1] == static_cast<char>(seed + i);
    free(objects[i]);
  }
  return good;
}

// A thread with a stack of the given size that runs `main`; false if there can be none.
bool start(pthread_t *thread, size_t stack_bytes, void *(*main)(void *), void *argument) {
  pthread_attr_t attributes;
  EXPECT_EQ(pthread_attr_init(&attributes), 0);
  EXPECT_EQ(pthread_attr_setstacksize(&attributes, stack_bytes), 0) << stack_bytes;
  int error = pthread_create(thread, &attributes, main, argument);
  pthread_attr_destroy(&attributes);
  return error == 0;
}

void *work_in_thread(void *) { return reinterpret_cast<void *>(uintptr_t{work(1)}); }

bool joined_well(pthread_t thread) {
  void *result = nullptr;
  return pthread_join(thread, &result) == 0 && result != nullptr;
}

// 16 KiB, of which the libc takes the thread-local storage of every library, ours too.
TEST(Threads, SixteenKibibytesOfStack) {
  constexpr size_t kLeast = 16384;
  for (int i = 0; i < 200; i++) {
    pthread_t thread;
    ASSERT_TRUE(start(&thread, kLeast, work_in_thread, nullptr)) << i;
    ASSERT_TRUE(joined_well(thread));
  }
}

TEST(Threads, LeastStackOfTheSystem) {
  pthread_t thread;
  ASSERT_TRUE(start(&thread, static_cast<size_t>(sysconf(_SC_THREAD_STACK_MIN)), work_in_thread, nullptr));
  ASSERT_TRUE(joined_well(thread));
}

// Ten thousand, one after the other: what each leaves behind is used by the next.
TEST(Threads, TenThousandInTurn) {
  auto some_threads = [](int count) {
    for (int i = 0; i < count; i++) {
      pthread_t thread;
      ASSERT_TRUE(start(&thread, 64 * kKiB, work_in_thread, nullptr)) << i;
      ASSERT_TRUE(joined_well(thread)) << i;
    }
  };
  some_threads(100);
  folio_stats before = stats_now();
  some_threads(10000);
  folio_stats after = stats_with_live(before.live + 64 * kKiB);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_LE(after.metadata, before.metadata + 2 * kMiB);
  EXPECT_LE(after.chunks, before.chunks + 16);
  EXPECT_LE(after.live, before.live + 64 * kKiB);
  EXPECT_LE(after.reserved, before.reserved + 64 * kMiB);
}

void *free_one(void *object) {
  free(object);
  return reinterpret_cast<void *>(uintptr_t{1});
}

// Each leaves a single free object behind: what holds it must not cost far more than the object.
TEST(Threads, EndingThreadsLeaveLittleMetadata) {
  constexpr size_t kThreads = 10000;
  std::vector<void *> objects(kThreads);
  for (void *&object : objects) object = opaque(malloc(8));
  size_t before = stats_now().metadata;
  for (void *object : objects) {
    pthread_t thread;
    ASSERT_TRUE(start(&thread, 64 * kKiB, free_one, object));
    ASSERT_TRUE(joined_well(thread));
  }
  EXPECT_LE(stats_now().metadata, before + kMiB);
}

std::atomic<int> arrived;
std::atomic<bool> may_end;

void *work_and_wait(void *argument) {
  bool good = work(static_cast<unsigned>(reinterpret_cast<uintptr_t>(argument)));
  void *kept = opaque(malloc(300));
  arrived++;
  may_end.wait(false);
  free(kept);
  return reinterpret_cast<void *>(uintptr_t{good && work(7)});
}

// Two thousand at once: all work, none caches much, all give back.
TEST(Threads, TwoThousandAtOnce) {
  constexpr int kThreads = 2000;
  folio_collect();
  folio_stats before = stats_now();
  arrived = 0;
  may_end = false;
  std::vector<pthread_t> threads;
  for (int i = 0; i < kThreads; i++) {
    pthread_t thread;
    if (!start(&thread, 64 * kKiB, work_and_wait, reinterpret_cast<void *>(static_cast<intptr_t>(i)))) break;
    threads.push_back(thread);
  }
  while (arrived < static_cast<int>(threads.size())) usleep(1000);
  folio_stats during = stats_now();
  may_end = true;
  may_end.notify_all();
  bool good = true;
  for (pthread_t thread : threads) good = joined_well(thread) && good;
  EXPECT_TRUE(good);
  if (threads.size() < kThreads) GTEST_SKIP() << "the system allows only " << threads.size() << " threads";
  EXPECT_EQ(during.threads, before.threads + kThreads);
  EXPECT_LE(during.cached, before.cached + kThreads * 64 * kKiB + 64 * kMiB) << "at most 64 KiB a thread, and pools";
  folio_collect();
  folio_stats after = stats_with_live(before.live + 256 * kKiB);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_LE(after.live, before.live + 256 * kKiB);
}

// ---- Destructors ----

pthread_key_t keys[20];
std::atomic<int> destructor_calls;
std::atomic<bool> destructors_good;

// Allocates in every round that POSIX grants, so also after Folio's own destructor has run.
void destroy(void *value) {
  if (!work(static_cast<unsigned>(reinterpret_cast<uintptr_t>(value)))) destructors_good = false;
  destructor_calls++;
  uintptr_t rounds_left = reinterpret_cast<uintptr_t>(value) - 1;
  for (pthread_key_t key : keys) {
    if (rounds_left == 0 || pthread_getspecific(key) != nullptr) continue;
    if (pthread_setspecific(key, reinterpret_cast<void *>(rounds_left)) != 0) destructors_good = false;
  }
}

TEST(Threads, KeyDestructorsAllocateInEveryRound) {
  destructors_good = true;
  for (pthread_key_t &key : keys) ASSERT_EQ(pthread_key_create(&key, destroy), 0);
  auto some_threads = [](int count) {
    for (int i = 0; i < count; i++) {
      std::thread([] {
        for (pthread_key_t key : keys) {
          pthread_setspecific(key, reinterpret_cast<void *>(uintptr_t{PTHREAD_DESTRUCTOR_ITERATIONS}));
        }
      }).join();
    }
  };
  some_threads(20);
  folio_stats before = stats_now();
  destructor_calls = 0;
  some_threads(500);
  folio_stats after = stats_with_live(before.live + 64 * kKiB);
  for (pthread_key_t key : keys) pthread_key_delete(key);
  EXPECT_TRUE(destructors_good);
  EXPECT_GE(destructor_calls, 500 * 20 * 2);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_LE(after.live, before.live + 64 * kKiB) << "nothing is lost with a thread";
  EXPECT_LE(after.cached, before.cached + 4 * kMiB);
  EXPECT_LE(after.metadata, before.metadata + 256 * kKiB);
}

// What was allocated in the last round by a thread that is gone can be freed by another.
void *left_behind[200];
std::atomic<int> left_count;

void leave_behind(void *value) {
  int index = left_count++;
  left_behind[index] = opaque(malloc(777));
  fill(left_behind[index], 777, static_cast<unsigned>(index));
  uintptr_t rounds_left = reinterpret_cast<uintptr_t>(value) - 1;
  if (rounds_left > 0) pthread_setspecific(keys[0], reinterpret_cast<void *>(rounds_left));
}

TEST(Threads, ObjectsOutliveTheirThread) {
  left_count = 0;
  ASSERT_EQ(pthread_key_create(&keys[0], leave_behind), 0);
  for (int i = 0; i < 50; i++) {
    std::thread([] { pthread_setspecific(keys[0], reinterpret_cast<void *>(uintptr_t{4})); }).join();
  }
  pthread_key_delete(keys[0]);
  ASSERT_EQ(left_count, 200);
  for (int i = 0; i < left_count; i++) {
    EXPECT_EQ(first_difference(left_behind[i], 777, static_cast<unsigned>(i)), 777u);
    free(left_behind[i]);
  }
}

struct AllocatesAtEnd {
  std::string text;
  ~AllocatesAtEnd() {
    for (int i = 0; i < 100; i++) text += std::string(static_cast<size_t>(i) * 10, 'x');
    if (!work(5)) destructors_good = false;
    destructor_calls++;
  }
};

TEST(Threads, ThreadLocalDestructorsAllocate) {
  destructor_calls = 0;
  destructors_good = true;
  for (int i = 0; i < 300; i++) {
    std::thread([] {
      thread_local AllocatesAtEnd first;
      thread_local std::vector<int> numbers;
      first.text = "some text that is too long for the small string";
      numbers.assign(10000, 1);
    }).join();
  }
  EXPECT_EQ(destructor_calls, 300);
  EXPECT_TRUE(destructors_good);
}

TEST(Threads, DetachedAndCancelledOnes) {
  arrived = 0;
  for (int i = 0; i < 200; i++) {
    std::thread([] {
      work(3);
      arrived++;
    }).detach();
    pthread_t cancelled;
    ASSERT_TRUE(start(
        &cancelled, 64 * kKiB,
        [](void *) -> void * {
          free(opaque(malloc(100)));
          for (;;) pause();
        },
        nullptr));
    ASSERT_EQ(pthread_cancel(cancelled), 0);
    pthread_join(cancelled, nullptr);
  }
  while (arrived < 200) usleep(1000);
}

// A ring of threads, each freeing what the one before allocated.
TEST(Threads, ObjectsMayBeFreedByAnyone) {
  constexpr size_t kThreads = 6;
  constexpr int kRounds = 300;
  constexpr size_t kBatch = 200;
  static std::atomic<void **> slots[kThreads];
  std::atomic<bool> good{true};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; t++) {
    threads.emplace_back([t, &good] {
      for (int round = 0; round < kRounds; round++) {
        void **batch = static_cast<void **>(opaque(malloc(kBatch * sizeof(void *))));
        for (size_t i = 0; i < kBatch; i++) {
          size_t bytes = 1 + (i * 37 + t * 11) % 3000;
          batch[i] = opaque(malloc(bytes));
          memset(batch[i], static_cast<int>(i), bytes);
        }
        void **old = slots[t].exchange(batch);
        void **foreign = slots[(t + 1) % kThreads].exchange(nullptr);
        for (void **taken : {old, foreign}) {
          if (taken == nullptr) continue;
          for (size_t i = 0; i < kBatch; i++) {
            if (*static_cast<unsigned char *>(taken[i]) != static_cast<unsigned char>(i)) good = false;
            free(taken[i]);
          }
          free(taken);
        }
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  for (auto &slot : slots) {
    void **batch = slot.exchange(nullptr);
    for (size_t i = 0; batch != nullptr && i < kBatch; i++) free(batch[i]);
    free(batch);
  }
  EXPECT_TRUE(good);
}

}  // namespace
