#include "store/collapse.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "config/options.h"
#include "os/os.h"
#include "store/bin.h"
#include "store/check.h"
#include "store/commit.h"
#include "store/occupancy.h"
#include "store/purge.h"
#include "store/residency.h"
#include "unit/child.h"
#include "unit/store/take_give.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

const BinId bin = bin_of(100);

// Bytes in huge pages in the mappings that touch the chunk.
size_t huge_bytes(const char* chunk) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  size_t kib, sum = 0;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t from, to;
    if (sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      inside = from < reinterpret_cast<uintptr_t>(chunk + kChunkBytes) && reinterpret_cast<uintptr_t>(chunk) < to;
    }
    if (inside && sscanf(line.c_str(), "AnonHugePages: %zu kB", &kib) == 1) sum += kib * kKiB;
  }
  return sum;
}

std::vector<void*> take(size_t n) {
  const std::vector<void*> objects = take_many(bin, n);
  for (void* object : objects) memset(object, 7, 100);
  return objects;
}
void give(const std::vector<void*>& objects) { give_many(bin, objects); }

// All that are dense now.
unsigned collapse_all() {
  unsigned done = 0;
  visit_chunks(process_store, bin, [&](Descriptor& d) {
    done += is_dense(d) && collapse_chunk(d) ? 1 : 0;
    return true;
  });
  return done;
}

bool can_collapse() {
  if (!os::huge_pages_come() || os::page_bytes() != 4096) return false;
  auto* const probe = static_cast<char*>(os::reserve(kChunkBytes, kChunkBytes));
  if (!os::commit(probe, kChunkBytes)) return false;
  *probe = 1;
  return os::collapse(probe, kChunkBytes);
}

// In a child, so that no test finds another one's chunks.
#define EXPECT_IN_CHILD(...)                                                          \
  do {                                                                                \
    const int result = in_child([&] {                                                 \
      if (!can_collapse()) return kCannot;                                            \
      __VA_ARGS__();                                                                  \
      return ::testing::Test::HasFailure() ? kFailed : kPassed;                       \
    });                                                                               \
    if (result == kCannot) GTEST_SKIP() << "no huge pages here, or Linux before 6.1"; \
    EXPECT_EQ(result, kPassed);                                                       \
  } while (false)

TEST(Collapse, ABinsFirstChunksWhenTheyAreFull) {
  EXPECT_IN_CHILD([] {
    const auto objects = take(2 * info_of(bin).objects);
    char* const chunk = chunk_start(objects.front());
    ASSERT_EQ(huge_bytes(chunk), 0u) << "the first ones come as small pages";
    const PageDelta delta;
    EXPECT_EQ(collapse_all(), 2u);
    EXPECT_EQ(huge_bytes(chunk), 2 * kChunkBytes);
    EXPECT_EQ(place_of(objects.front()).descriptor->backing(), Backing::kHuge);
    EXPECT_LT(delta.resident(), 2 * 80 * static_cast<int64_t>(kKiB))
        << "what lies before the first and behind the last";
    EXPECT_EQ(delta.dirty(), 0);
    for (void* object : objects) EXPECT_EQ(static_cast<char*>(object)[99], 7);
    EXPECT_TRUE(check_bin(process_store, bin));
    EXPECT_EQ(collapse_all(), 0u) << "nothing is left to do";
  });
}

TEST(Collapse, NotWhatHasRoom) {
  EXPECT_IN_CHILD([] {
    const auto objects = take(info_of(bin).objects * 9 / 10);
    collapse_all();
    EXPECT_EQ(huge_bytes(chunk_start(objects.front())), 0u);
    // Nor what is full of free pages.
    const auto more = take(info_of(bin).objects - objects.size());
    give(objects);
    collapse_all();
    EXPECT_EQ(huge_bytes(chunk_start(objects.front())), 0u);
    EXPECT_TRUE(check_bin(process_store, bin));
  });
}

// Its commit word is closed then.
TEST(Collapse, NotAChunkThatLeavesItsBin) {
  EXPECT_IN_CHILD([] {
    const auto objects = take(info_of(bin).objects);
    Descriptor& d = *place_of(objects.front()).descriptor;
    ASSERT_EQ(commit_chunk(d), Commit::kDone);
    ASSERT_TRUE(close_commit(d));
    const PageDelta delta;
    EXPECT_EQ(collapse_all(), 0u);
    EXPECT_EQ(delta.resident(), 0);
    open_commit(d);
    EXPECT_EQ(collapse_all(), 1u);
    EXPECT_TRUE(close_commit(d)) << "it is open again";
    open_commit(d);
  });
}

// Thinned out, given back, filled up again: twice, so that nothing of the first time lasts.
TEST(Collapse, AChunkThatFillsUpAgain) {
  EXPECT_IN_CHILD([] {
    auto objects = take(info_of(bin).objects);
    char* const chunk = chunk_start(objects.front());
    for (unsigned turn = 0; turn < 2; ++turn) {
      collapse_all();
      EXPECT_EQ(huge_bytes(chunk), kChunkBytes);
      const std::vector<void*> freed(objects.begin(), objects.begin() + objects.size() * 9 / 10);
      objects.erase(objects.begin(), objects.begin() + objects.size() * 9 / 10);
      give(freed);
      EXPECT_GT(purge_bins(process_store, PurgeWhich::kAll, ~size_t{0}), kChunkBytes / 2);
      EXPECT_EQ(huge_bytes(chunk), 0u);
      collapse_all();
      EXPECT_EQ(huge_bytes(chunk), 0u) << "it is nearly empty";
      const auto again = take(freed.size());
      objects.insert(objects.end(), again.begin(), again.end());
      EXPECT_TRUE(check_bin(process_store, bin));
    }
    for (void* object : objects) ASSERT_EQ(static_cast<char*>(object)[99], 7);
  });
}

TEST(Collapse, NoneWhereTheyAreRefused) {
  EXPECT_IN_CHILD([] {
    const auto objects = take(info_of(bin).objects);
    options.huge_pages = kHugePagesNever;
    options.decay = 10;
    for (unsigned i = 0; i < 20; ++i, sleep_ms(50)) EXPECT_FALSE(collapse_dense_chunks(process_store));
    EXPECT_EQ(huge_bytes(chunk_start(objects.front())), 0u);
  });
}

TEST(Collapse, WhatHasStayedDenseFromOnePollToTheNext) {
  EXPECT_IN_CHILD([] {
    options.decay = 100;
    auto objects = take(info_of(bin).objects);
    char* const chunk = chunk_start(objects.front());
    Descriptor& d = *place_of(objects.front()).descriptor;
    EXPECT_TRUE(collapse_dense_chunks(process_store)) << "it is waited for";
    EXPECT_EQ(d.backing(), Backing::kDense);
    EXPECT_TRUE(collapse_dense_chunks(process_store)) << "too early";
    EXPECT_EQ(huge_bytes(chunk), 0u);
    // Something of it goes: it has to wait once more.
    const std::vector<void*> some(objects.begin(), objects.begin() + 100);
    give(some);
    EXPECT_GT(purge_bins(process_store, PurgeWhich::kAll, ~size_t{0}), 0u);
    EXPECT_EQ(d.backing(), Backing::kSmallPurged);
    EXPECT_EQ(take(100).size(), 100u);
    sleep_ms(600);
    EXPECT_TRUE(collapse_dense_chunks(process_store));
    EXPECT_EQ(d.backing(), Backing::kDense);
    EXPECT_EQ(huge_bytes(chunk), 0u);
    sleep_ms(600);
    EXPECT_TRUE(collapse_dense_chunks(process_store));
    EXPECT_EQ(d.backing(), Backing::kHuge);
    EXPECT_EQ(huge_bytes(chunk), kChunkBytes);
    sleep_ms(600);
    EXPECT_FALSE(collapse_dense_chunks(process_store)) << "nothing is left to do";
    EXPECT_TRUE(check_bin(process_store, bin));
  });
}

// What was there before a fork may be shared with the child, or the parent.
TEST(Collapse, OnlyWhatWasOpenedSinceTheLastFork) {
  EXPECT_IN_CHILD([] {
    const auto objects = take(info_of(bin).objects);
    collapse_note_fork();
    const auto more = take(info_of(bin).objects);
    EXPECT_EQ(collapse_all(), 1u);
    EXPECT_EQ(place_of(objects.front()).descriptor->backing(), Backing::kSmall);
    EXPECT_EQ(place_of(more.front()).descriptor->backing(), Backing::kHuge);
    for (unsigned i = 0; i < 100; ++i) collapse_note_fork();
    const auto others = take(info_of(bin).objects);
    EXPECT_EQ(collapse_all(), 0u) << "nobody counts so many";
  });
}

// Threads write, check, give and take beside it, and others purge.
TEST(Collapse, BesideEverythingElse) {
  if (kThreadSanitizer) GTEST_SKIP() << "it starts no threads in the child of a process of several";
  EXPECT_IN_CHILD([] {
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::vector<void*> objects = take(2 * info_of(bin).objects);
        for (unsigned turn = 0; !stop; ++turn) {
          for (void* object : objects) memset(object, static_cast<int>(t + 10), 100);
          const size_t kept = objects.size() * (turn % 4 + 1) / 5;
          give({objects.begin() + static_cast<ptrdiff_t>(kept), objects.end()});
          objects.resize(kept);
          const auto more = take(2 * info_of(bin).objects - kept);
          objects.insert(objects.end(), more.begin(), more.end());
          for (size_t i = 0; i < kept; ++i) {
            if (static_cast<char*>(objects[i])[99] != static_cast<char>(t + 10)) abort();
          }
        }
        give(objects);
      });
    }
    threads.emplace_back([&] {
      while (!stop) purge_bins(process_store, PurgeWhich::kAll, ~size_t{0});
    });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    unsigned done = 0;
    while (done < rounds(100) && std::chrono::steady_clock::now() < end) done += collapse_all();
    EXPECT_GT(done, 0u);
    stop = true;
    for (auto& thread : threads) thread.join();
    purge_bins(process_store, PurgeWhich::kAll, ~size_t{0});
    EXPECT_TRUE(check_bin(process_store, bin));
  });
}

}  // namespace
