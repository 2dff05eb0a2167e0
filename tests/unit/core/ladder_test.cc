#include "core/ladder.h"

#include <atomic>
#include <thread>

#include "core/clock.h"
#include "core/realloc.h"
#include "policy/pressure.h"
#include "space/room.h"
#include "unit/child.h"
#include "unit/core/heap.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr size_t kLeast = 8 * kMiB;  // over a soft limit, at most that or 2 %

size_t held() { return static_cast<size_t>(held_bytes()); }

// Limits from what is held now on; none afterwards.
class Limits {
 public:
  Limits(size_t soft, size_t hard) : begin_(held()) {
    ladder_set(soft == 0 ? 0 : static_cast<int64_t>(begin_ + soft),
               hard == 0 ? 0 : static_cast<int64_t>(begin_ + hard));
  }
  ~Limits() { ladder_set(0, 0); }
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;

  size_t soft() const { return static_cast<size_t>(limit_state.soft.get()); }
  size_t hard() const { return static_cast<size_t>(limit_state.hard.get()); }

 private:
  size_t begin_;
};

// Objects of one size, and the most that was held while they were made and freed.
class Burst {
 public:
  void make(size_t size, size_t bytes) {
    for (size_t made = 0; made < bytes; made += size) {
      void* const object = allocate(size);
      ASSERT_NE(object, nullptr) << size;
      memset(object, 1, 1);
      objects_.push_back(object);
      poll();
    }
  }
  void free_all() {
    for (void* object : objects_) {
      free_object(object);
      poll();
    }
    objects_.clear();
  }
  size_t most() const { return most_; }

 private:
  void poll() {
    if (held() > most_) most_ = held();
  }
  std::vector<void*> objects_;
  size_t most_ = 0;
};

constexpr size_t kBurstSizes[] = {48, 200, 1000, 2500, 8000, 30000, 200000, 3000000, 20000000};

TEST(Ladder, CyclesOfBurstsStayUnderTheSoftLimit) {
  collect_everything("test");
  const Limits limits(80 * kMiB, 0);
  Burst burst;
  for (unsigned round = 0; round < 2; ++round) {
    for (const size_t size : kBurstSizes) {
      burst.make(size, 60 * kMiB);
      burst.free_all();
    }
  }
  EXPECT_LE(burst.most(), limits.soft() + std::max(limits.soft() / 50, kLeast));
}

// Without limits the same holds more: else the test above shows nothing.
TEST(Ladder, CyclesOfBurstsHoldMoreWithoutALimit) {
  collect_everything("test");
  const size_t begin = held();
  Burst burst;
  for (unsigned round = 0; round < 2; ++round) {
    for (const size_t size : kBurstSizes) {
      burst.make(size, 60 * kMiB);
      burst.free_all();
    }
  }
  EXPECT_GT(burst.most(), begin + 80 * kMiB + kLeast);
}

TEST(Ladder, WhatIsLiveMayExceedTheSoftLimit) {
  collect_everything("test");
  const Limits limits(16 * kMiB, 0);
  Burst burst;
  burst.make(1000, 64 * kMiB);
  EXPECT_EQ(limit_poll(), kAtSoft);
  burst.free_all();
  EXPECT_LE(held(), limits.soft() + kLeast);
}

TEST(Ladder, ThreadsShareTheLimit) {
  collect_everything("test");
  const Limits limits(96 * kMiB, 0);
  std::atomic<size_t> most = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Burst burst;
      for (const size_t size : {size_t{64}, size_t{3000}, size_t{100000}, size_t{700}}) {
        burst.make(size, 16 * kMiB);
        burst.free_all();
      }
      for (size_t seen = most; seen < burst.most() && !most.compare_exchange_weak(seen, burst.most());) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, limits.soft() + std::max(limits.soft() / 50, kLeast));
}

TEST(Ladder, ReallocIsUnderTheLimitToo) {
  collect_everything("test");
  const Limits limits(100 * kMiB, 0);
  Burst burst;
  burst.make(3000000, 60 * kMiB);
  burst.free_all();  // dirty
  void* object = allocate(10 * kMiB);
  for (size_t size = 12 * kMiB; size <= 90 * kMiB; size += 2 * kMiB) {
    object = reallocate(object, 1, size, "realloc");
    ASSERT_NE(object, nullptr);
    EXPECT_LE(held(), limits.soft() + kLeast);
  }
  free_object(object);
}

// ---- The hard limit ----

TEST(Ladder, LargeObjectsAreRefusedFirst) {
  collect_everything("test");
  const Limits limits(0, 64 * kMiB);
  std::vector<void*> objects;
  while (void* object = allocate(kMiB)) objects.push_back(object);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_GT(objects.size(), 50u);
  EXPECT_LE(held(), limits.hard());
  EXPECT_EQ(allocate(20 * kMiB), nullptr);
  EXPECT_EQ(allocate_zeroed(2 * kMiB), nullptr);
  EXPECT_EQ(allocate_aligned(65536, 2 * kMiB, false), nullptr);
  EXPECT_EQ(reallocate(objects[0], 1, 3 * kMiB, "realloc"), nullptr);
  // Small ones still have the reserve.
  const size_t before = objects.size();
  for (unsigned i = 0; i < 1000; ++i) {
    void* const object = allocate(100);
    ASSERT_NE(object, nullptr) << i;
    objects.push_back(object);
  }
  // Until it is used up as well.
  while (void* object = allocate(1000)) objects.push_back(object);
  EXPECT_GT(objects.size() - before, 1000u);
  EXPECT_LE(held(), limits.hard() + kMiB);
  EXPECT_GT(held(), limits.hard() - kMiB);
  EXPECT_EQ(limit_take_highest(), kAtHard);
  // And then there is room again.
  for (void* object : objects) free_object(object);
  void* const again = allocate(kMiB);
  EXPECT_NE(again, nullptr);
  free_object(again);
}

TEST(Ladder, BeforeARefusalEverythingGoes) {
  collect_everything("test");
  const Limits limits(0, 64 * kMiB);
  for (const size_t size : kBurstSizes) {
    Burst burst;
    burst.make(size, 48 * kMiB);
    burst.free_all();
    // Free, but of another size: it must go, also what caches hold.
    for (const size_t other : {size_t{40}, size_t{1500}, size_t{300000}, size_t{40 * kMiB}}) {
      Burst next;
      next.make(other, 40 * kMiB);
      next.free_all();
    }
  }
}

TEST(Ladder, AnObjectThatIsThereIsHandedOutAtTheLimit) {
  collect_everything("test");
  const Limits limits(0, 16 * kMiB);
  std::vector<void*> objects;
  while (void* object = allocate(5000)) objects.push_back(object);
  for (unsigned i = 0; i < 100; ++i) {
    free_object(objects[i * 7]);
    objects[i * 7] = allocate(5000);
    ASSERT_NE(objects[i * 7], nullptr);
  }
  for (void* object : objects) free_object(object);
}

TEST(Ladder, HugeObjectsGrowByWhatIsMissing) {
  collect_everything("test");
  const Limits limits(0, 96 * kMiB);
  void* object = allocate(50 * kMiB);
  ASSERT_NE(object, nullptr);
  memset(object, 7, 100);
  object = reallocate(object, 1, 80 * kMiB, "realloc");  // not 130
  ASSERT_NE(object, nullptr);
  EXPECT_EQ(static_cast<char*>(object)[99], 7);
  EXPECT_EQ(reallocate(object, 1, 120 * kMiB, "realloc"), nullptr);
  free_object(object);
}

TEST(Ladder, ALimitThatIsSetLaterGivesBackAtOnce) {
  const SavedOptions saved;
  options.dirty_floor = 1000;
  Burst burst;
  burst.make(3000, 40 * kMiB);
  burst.free_all();
  const auto wanted = static_cast<int64_t>(held() - 20 * kMiB);
  ladder_set(wanted, 0);
  EXPECT_LE(held_bytes(), wanted);
  ladder_set(0, 0);
  EXPECT_FALSE(ladder_is_tight());
}

TEST(Ladder, CachesKeepLittleNearTheLimit) {
  collect_everything("test");
  const Limits limits(64 * kMiB, 0);
  Burst burst;
  while (held() < limits.soft() / 8 * 7 - 3 * kMiB) burst.make(1000, 100 * kKiB);
  EXPECT_FALSE(ladder_is_tight());
  while (held() < limits.soft() / 16 * 15 + kMiB) burst.make(1000, 100 * kKiB);
  EXPECT_TRUE(ladder_is_tight());
  EXPECT_TRUE(room_is_tight());
  burst.free_all();
  collect_everything("test");
  ladder_after_call();
  EXPECT_FALSE(ladder_is_tight());
  EXPECT_FALSE(room_is_tight());
}

// ---- From outside ----

TEST(Ladder, ARequestFromOutsideIsServed) {
  const auto serve = [](int64_t soft, int64_t hard) {
    limit_request.soft.store(soft, order::relaxed);
    limit_request.hard.store(hard, order::relaxed);
    const uint32_t wanted = limit_request.done.load(order::relaxed) + 1;
    limit_request.wanted.store(wanted, order::relaxed);
    ladder_serve_request();
    EXPECT_EQ(limit_request.done.load(order::relaxed), wanted);
  };
  const auto soft = [] { return limit_state.soft.get(); };
  const auto hard = [] { return limit_state.hard.get(); };
  constexpr int64_t kG = int64_t{1} << 30;
  serve(3 * kG, 4 * kG);
  EXPECT_EQ(soft(), 3 * kG);
  EXPECT_EQ(hard(), 4 * kG);
  serve(LimitRequest::kKeep, 5 * kG);
  EXPECT_EQ(soft(), 3 * kG);
  EXPECT_EQ(hard(), 5 * kG);
  serve(2 * kG, LimitRequest::kKeep);
  EXPECT_EQ(soft(), 2 * kG);
  EXPECT_EQ(hard(), 5 * kG);
  ladder_set(kG, 0);
  ladder_serve_request();  // nothing is wanted
  EXPECT_EQ(soft(), kG);
  serve(0, 0);
  EXPECT_FALSE(limits_on());
}

TEST(Ladder, TheHousekeeperTellsTheProgram) {
  static std::atomic<int> reported = 0;
  static std::atomic<void*> dropped = nullptr;
  EXPECT_EQ(in_child([] {
              void* cache = allocate(64 * kMiB);
              dropped = cache;
              // It may allocate and free.
              pressure_call(kTight, [](int level) {
                reported = level;
                free_object(allocate(1000));
                free_object(dropped.exchange(nullptr));
              });
              if (!clock_start_housekeeper()) return kCannot;
              ladder_set(held_bytes() + static_cast<int64_t>(2 * kMiB), 0);
              for (unsigned i = 0; i < 2000 && dropped != nullptr; ++i) sleep_ms(10);
              return reported >= static_cast<int>(kTight) && dropped == nullptr ? kPassed : kFailed;
            }),
            kPassed);
}

}  // namespace
