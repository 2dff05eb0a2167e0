#include "insight/samples.h"

#include <thread>

#include "core/lifecycle.h"
#include "core/realloc.h"
#include "core/seam.h"
#include "space/room.h"
#include "unit/child.h"
#include "unit/core/heap.h"

using namespace folio;
using namespace folio_test;

namespace {

struct Found {
  Sample* sample = nullptr;
  const char* stack = nullptr;
  explicit operator bool() const { return sample != nullptr; }
};

template <class Visit>
void visit_samples(Visit visit) {
  for (unsigned k = 0; k < kSampleTables; ++k) {
    Sample* const table = sample_tables[k].load(order::acquire);
    if (table == nullptr) return;
    for (unsigned slot = 0; slot < sample_slots(k); ++slot) {
      const uint64_t mark = table[slot].mark.load(order::acquire);
      visit(table[slot], mark >> 2, mark & 3, sample_stack(table, sample_slots(k), slot));
    }
  }
}

Found live_sample(const void* object) {
  Found found;
  visit_samples([&](Sample& sample, uint64_t, uint64_t phase, const char* stack) {
    if (phase != kSampleLive || sample.object.get() != object) return;
    EXPECT_FALSE(found) << "two samples of one object";
    found = {&sample, stack};
  });
  return found;
}

size_t count_live() {
  size_t live = 0;
  visit_samples([&](Sample&, uint64_t, uint64_t phase, const char*) { live += phase == kSampleLive ? 1 : 0; });
  return live;
}

class Samples : public ::testing::Test {
 protected:
  ~Samples() override {
    seam_open();
    EXPECT_EQ(count_live(), 0u);
    expect_everything_free();
  }
};

TEST_F(Samples, OfEachObjectWhileItLives) {
  ASSERT_TRUE(start() || seam_close(1));
  for (const size_t size : {size_t{100}, size_t{5000}, size_t{20000}, 300 * kKiB, 9 * kMiB, 70 * kMiB}) {
    void* const object = alloc(size);
    const Found found = live_sample(object);
    ASSERT_TRUE(found) << size;
    EXPECT_EQ(found.sample->size, size);
    EXPECT_EQ(found.sample->interval, 1u);
    EXPECT_EQ(found.sample->thread, os::thread_id());
    EXPECT_LE(os::now_ms() - found.sample->written_ms.get(), 10000u);
    const uint64_t number = found.sample->mark.load(order::relaxed) >> 2;
    free_object(object);
    EXPECT_FALSE(live_sample(object)) << size;
    EXPECT_EQ(found.sample->mark.load(order::relaxed), number << 2 | kSampleFreed);
    EXPECT_GE(found.sample->freed_ms.get(), found.sample->written_ms.get());
  }
}

// The words of the copy are those of the stack, from the frame that took it on.
TEST_F(Samples, HoldTheStack) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "its frames are larger than what is copied";
#endif
  ASSERT_TRUE(seam_close(1));
  volatile uint64_t marked[3] = {0x1122334455667788, 0x99aabbccddeeff00, 42};
  void* const object = alloc(100);
  const Found found = live_sample(object);
  ASSERT_TRUE(found);
  const Sample& sample = *found.sample;
  const uint64_t sp = sample.registers[arch::kRegisters - 2], pc = sample.registers[arch::kRegisters - 1];
  EXPECT_GT(pc, 4096u);
  const auto at = reinterpret_cast<uintptr_t>(&marked[0]);
  ASSERT_GE(at, sp);
  ASSERT_LE(at - sp + sizeof marked, sample.stack_bytes);
  for (unsigned i = 0; i < 3; ++i) {
    uint64_t word;
    memcpy(&word, found.stack + (at - sp) + i * sizeof word, sizeof word);
    EXPECT_EQ(word, marked[i]);
  }
  free_object(object);
}

// A thread's stack ends, and nothing is read beyond it.
TEST_F(Samples, UpToTheEndOfTheStack) {
  ASSERT_TRUE(seam_close(1));
  std::thread([] {
    void* const object = alloc(100);
    const Found found = live_sample(object);
    ASSERT_TRUE(found);
    EXPECT_GT(found.sample->stack_bytes, 0u);
    EXPECT_LE(found.sample->stack_bytes, kSampleStackBytes);
    EXPECT_EQ(found.sample->thread, os::thread_id());
    free_object(object);
  }).join();
}

TEST_F(Samples, AnotherSizeIsAnotherSample) {
  ASSERT_TRUE(seam_close(1));
  struct {
    size_t from, to;
  } const steps[] = {
      {100, 120},     {40 * kKiB, 100 * kKiB}, {100 * kKiB, 40 * kKiB}, {9 * kMiB, 10 * kMiB}, {9 * kMiB, 80 * kMiB},
      {9 * kMiB, 100}};
  for (const auto& step : steps) {
    void* const before = alloc(step.from);
    void* const after = opaque(reallocate(before, 1, step.to, "realloc"));
    ASSERT_NE(after, nullptr);
    const Found found = live_sample(after);
    ASSERT_TRUE(found) << step.from << " to " << step.to;
    EXPECT_EQ(found.sample->size, step.to);
    if (after != before) EXPECT_FALSE(live_sample(before));
    free_object(after);
    EXPECT_FALSE(live_sample(after));
  }
}

TEST_F(Samples, WhatIsResizedWhileNobodyProfilesIsNoSampleAnyMore) {
  ASSERT_TRUE(seam_close(1));
  void* const object = alloc(100 * kKiB);
  ASSERT_TRUE(seam_open());
  void* const shrunk = opaque(reallocate(object, 1, 40 * kKiB, "realloc"));
  EXPECT_FALSE(live_sample(shrunk));
  free_object(shrunk);
}

// Where there is no memory for another size the object lives on, and so does its sample.
TEST(SamplesLimit, OfAnObjectThatCannotGrowGoesOn) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    if (!seam_close(1)) return kFailed;
    void* const object = alloc(9 * kMiB);
    const Found before = live_sample(object);
    if (!before) return kFailed;
    const uint64_t mark = before.sample->mark.load(order::relaxed);
    if (!limit_address_space(kMiB)) return kCannot;
    if (reallocate(object, 1, 80 * kMiB, "realloc") != nullptr) return kFailed;
    const Found after = live_sample(object);
    if (!after || after.sample->mark.load(order::relaxed) != mark) return kFailed;
    free_object(object);
    return live_sample(object) ? kFailed : kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

// Many more than the first table holds, and then as many again: what was freed makes room.
TEST_F(Samples, TablesGrowWithWhatLives) {
  ASSERT_TRUE(seam_close(1));
  const uint64_t lost = sample_counts.lost.get();
  std::vector<void*> objects(10000);
  for (unsigned round = 0; round < 2; ++round) {
    for (void*& object : objects) object = alloc(100);
    EXPECT_EQ(count_live(), objects.size());
    EXPECT_EQ(sample_counts.lost.get(), lost);
    for (void* object : objects) free_object(object);
    EXPECT_EQ(count_live(), 0u);
  }
  unsigned tables = 0;
  while (tables < kSampleTables && sample_tables[tables].load(order::acquire) != nullptr) ++tables;
  EXPECT_LE(sample_slots(tables - 1), 16 * objects.size());
}

// As in a process that has no samples yet.
bool begin_anew() {
  for (auto& table : sample_tables) table.store(nullptr, order::relaxed);
  return seam_close(1);
}

// A table counts as held as a whole: where there is no room for one the sample is lost, not the program's memory.
TEST(SamplesLimit, TakeNoMemoryThatThereIsNoRoomFor) {
  EXPECT_EQ(in_child([] {
              if (!begin_anew()) return kFailed;
              const uint64_t lost = sample_counts.lost.get();
              memory_room.most_small.set(held_bytes() + 512 * static_cast<int64_t>(kKiB));
              void* const object = alloc(100);
              const bool none = sample_table(0) == nullptr && sample_counts.lost.get() == lost + 1;
              memory_room.most_small.set(held_bytes() + 64 * static_cast<int64_t>(kMiB));
              for (unsigned i = 0; i < 10000; ++i) free_object(alloc(100));
              // What was freed is not kept for readers at the price of more tables.
              const bool one = sample_table(0) != nullptr && sample_table(1) == nullptr;
              free_object(object);
              return none && one ? kPassed : kFailed;
            }),
            kPassed);
}

// Without a limit there are as many as readers may want, and no more.
TEST(SamplesLimit, KeepsWhatWasFreedWithinABound) {
  EXPECT_EQ(in_child([] {
              if (!begin_anew()) return kFailed;
              for (unsigned i = 0; i < 100000; ++i) free_object(alloc(100 + i % 64 * 500));
              unsigned slots = 0;
              for (unsigned k = 0; k < kSampleTables && sample_table(k) != nullptr; ++k) slots += sample_slots(k);
              return slots != 0 && slots <= kSlotsForReaders ? kPassed : kFailed;
            }),
            kPassed);
}

TEST_F(Samples, EachHasANumberOfItsOwn) {
  ASSERT_TRUE(seam_close(1));
  constexpr unsigned kThreads = 8, kEach = 200;
  const uint64_t before = sample_counts.made.get(), lost_before = sample_counts.lost.get();
  std::vector<std::vector<void*>> objects(kThreads);
  std::vector<std::thread> threads;
  for (auto& own : objects) {
    threads.emplace_back([&own] {
      for (unsigned i = 0; i < kEach; ++i) own.push_back(alloc(100 + i * 37 % 5000));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint64_t> numbers;
  visit_samples([&](Sample&, uint64_t number, uint64_t phase, const char*) {
    if (phase == kSampleLive) numbers.push_back(number);
  });
  // Who comes while another thread makes a table does not wait for it.
  const uint64_t lost = sample_counts.lost.get() - lost_before;
  ASSERT_EQ(numbers.size() + lost, size_t{kThreads} * kEach);
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(std::unique(numbers.begin(), numbers.end()), numbers.end());
  EXPECT_GT(numbers.front(), before);
  EXPECT_EQ(sample_counts.made.get() - before, numbers.size() + lost);
  // By other threads than those that allocated.
  threads.clear();
  for (auto& own : objects) {
    threads.emplace_back([&own] {
      for (void* object : own) free_object(object);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The option starts the profile before the first call that it could miss.
TEST(SamplesOption, RunsFromTheStart) {
  EXPECT_EQ(in_child([] {
              options.profile = 1;
              return options.profile == 1 ? kPassed : kFailed;
            }),
            kPassed);
}

}  // namespace
