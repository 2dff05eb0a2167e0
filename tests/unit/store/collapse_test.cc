#include "store/collapse.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <utility>

#include "config/options.h"
#include "os/os.h"
#include "store/bin.h"
#include "store/check.h"
#include "store/cluster.h"
#include "store/commit.h"
#include "store/occupancy.h"
#include "store/purge.h"
#include "store/residency.h"
#include "unit/child.h"
#include "unit/store/purge_bins.h"
#include "unit/store/take_give.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

const BinId bin = bin_of(100);
const unsigned of_chunk = info_of(bin).objects, of_cluster = kClusterChunks * of_chunk;

// Bytes in huge pages in the mappings that touch the cluster.
size_t huge_bytes(const char* cluster) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  size_t kib, sum = 0;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t from, to;
    if (sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      inside = from < reinterpret_cast<uintptr_t>(cluster + kClusterBytes) && reinterpret_cast<uintptr_t>(cluster) < to;
    }
    if (inside && sscanf(line.c_str(), "AnonHugePages: %zu kB", &kib) == 1) sum += kib * kKiB;
  }
  return sum;
}

char* cluster_of(void* object) { return cluster_start(static_cast<char*>(object)); }

std::vector<void*> take_of(BinId from, size_t n) {
  const std::vector<void*> objects = take_many(from, n);
  for (void* object : objects) memset(object, 7, info_of(from).size);
  return objects;
}
std::vector<void*> take(size_t n) { return take_of(bin, n); }
// In chunks of small pages, also where a new one would come as part of a huge page.
std::vector<void*> take_small(size_t n) {
  const auto saved = std::exchange(options.huge_pages, kHugePagesNever);
  const auto objects = take(n);
  options.huge_pages = saved;
  return objects;
}
void give(const std::vector<void*>& objects) { give_many(bin, objects); }

Backing backing_of(void* object) { return place_of(object).descriptor->backing(); }

bool all_dense(char* cluster) {
  unsigned dense = 0;
  visit_cluster(cluster, [&](Descriptor& d) { return is_dense(d) && ++dense != 0; });
  return dense == kClusterChunks;
}

// All clusters that are dense now.
unsigned collapse_all() {
  unsigned done = 0;
  for (const BinId each : all_bins()) {
    visit_chunks(process_store, each, [&](Descriptor& d) {
      if (cluster_start(d.chunk()) == d.chunk() && all_dense(d.chunk())) done += collapse_cluster(d) ? 1 : 0;
      return true;
    });
  }
  return done;
}

bool can_collapse() {
  if (!os::huge_pages_come() || os::page_bytes() != 4096) return false;
  auto* const probe = static_cast<char*>(os::reserve(kClusterBytes, kClusterBytes));
  if (!os::commit(probe, kClusterBytes)) return false;
  *probe = 1;
  return os::collapse(probe, kClusterBytes);
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

TEST(Collapse, AHeapsFirstClustersWhenTheyAreFull) {
  EXPECT_IN_CHILD([] {
    const auto objects = take_small(2 * of_cluster);
    char* const cluster = cluster_of(objects.front());
    ASSERT_EQ(huge_bytes(cluster), 0u) << "the first ones come as small pages";
    const PageDelta delta;
    EXPECT_EQ(collapse_all(), 2u);
    EXPECT_EQ(huge_bytes(cluster), 2 * kClusterBytes);
    EXPECT_TRUE(is_cluster(cluster, kClusterHuge));
    for (void* object : objects) ASSERT_EQ(backing_of(object), Backing::kHuge);
    EXPECT_LT(delta.resident(), static_cast<int64_t>(2 * kClusterChunks * (kColourMost + os::page_bytes())))
        << "what lies before the first and behind the last";
    EXPECT_EQ(delta.dirty(), 0);
    for (void* object : objects) EXPECT_EQ(static_cast<char*>(object)[99], 7);
    EXPECT_TRUE(check_bin(process_store, bin));
    EXPECT_EQ(collapse_all(), 0u) << "nothing is left to do";
  });
}

TEST(Collapse, NotWhereAChunkHasRoom) {
  EXPECT_IN_CHILD([] {
    const auto objects = take(of_cluster - of_chunk / 10);
    char* const cluster = cluster_of(objects.front());
    ASSERT_EQ(cluster_of(objects.back()), cluster);
    EXPECT_EQ(collapse_all(), 0u);
    EXPECT_EQ(huge_bytes(cluster), 0u);
    // Nor what is full of free pages.
    const auto more = take(of_cluster - objects.size());
    give(objects);
    EXPECT_EQ(collapse_all(), 0u);
    EXPECT_EQ(huge_bytes(cluster), 0u);
    EXPECT_TRUE(check_bin(process_store, bin));
  });
}

// The rest of the cluster may be a part of anything.
TEST(Collapse, OnlyWhereBinsHaveAllChunks) {
  EXPECT_IN_CHILD([] {
    const auto objects = take(of_cluster - of_chunk);
    Descriptor& d = *place_of(objects.front()).descriptor;
    EXPECT_TRUE(is_dense(d));
    EXPECT_FALSE(collapse_cluster(d));
    EXPECT_EQ(huge_bytes(d.chunk()), 0u);
    EXPECT_EQ(d.backing(), Backing::kSmall);
    take(of_chunk);
    EXPECT_TRUE(collapse_cluster(d));
    EXPECT_EQ(huge_bytes(d.chunk()), kClusterBytes);
  });
}

// Chunk by chunk of one bin and the other.
TEST(Collapse, AClusterOfTwoBins) {
  EXPECT_IN_CHILD([] {
    const BinId other = bin_of(3000);
    std::vector<void*> objects, others;
    const auto take_two_chunks = [&](size_t less) {
      for (void* object : take(of_chunk)) objects.push_back(object);
      for (void* object : take_of(other, info_of(other).objects - less)) others.push_back(object);
    };
    for (unsigned i = 0; i < kClusterChunks / 2 - 1; ++i) take_two_chunks(0);
    take_two_chunks(info_of(other).objects / 10);  // the last chunk is not dense
    char* const cluster = cluster_of(objects.front());
    ASSERT_EQ(cluster_of(objects.back()), cluster);
    ASSERT_EQ(cluster_of(others.back()), cluster);
    options.decay = 100;
    EXPECT_FALSE(collapse_dense_clusters(process_store)) << "nothing is waited for";
    sleep_ms(600);
    EXPECT_FALSE(collapse_dense_clusters(process_store));
    EXPECT_EQ(collapse_all(), 0u);
    EXPECT_EQ(huge_bytes(cluster), 0u);
    for (void* object : take_of(other, info_of(other).objects / 10)) others.push_back(object);
    ASSERT_EQ(cluster_of(others.back()), cluster);
    for (unsigned i = 0; i < 2; ++i) {
      EXPECT_EQ(huge_bytes(cluster), 0u);
      sleep_ms(600);
      EXPECT_TRUE(collapse_dense_clusters(process_store));
    }
    EXPECT_EQ(huge_bytes(cluster), kClusterBytes);
    for (void* object : objects)
      ASSERT_TRUE(backing_of(object) == Backing::kHuge && static_cast<char*>(object)[99] == 7);
    for (void* object : others)
      ASSERT_TRUE(backing_of(object) == Backing::kHuge && static_cast<char*>(object)[2999] == 7);
    EXPECT_TRUE(check_bin(process_store, bin));
    EXPECT_TRUE(check_bin(process_store, other));
  });
}

// They are purged one by one.
TEST(Collapse, NotWithObjectsOfAPageAndMore) {
  EXPECT_IN_CHILD([] {
    const BinId other = bin_of(5000);
    const auto objects = take(of_cluster - of_chunk), others = take_of(other, info_of(other).objects);
    ASSERT_EQ(cluster_of(others.back()), cluster_of(objects.front()));
    EXPECT_EQ(collapse_all(), 0u);
    EXPECT_EQ(huge_bytes(cluster_of(objects.front())), 0u);
  });
}

// Its commit word is closed then.
TEST(Collapse, NotWhileAChunkLeavesItsBin) {
  EXPECT_IN_CHILD([] {
    const auto objects = take(of_cluster);
    Descriptor& d = *place_of(objects[of_cluster / 2]).descriptor;
    ASSERT_EQ(commit_chunk(d), Commit::kDone);
    ASSERT_TRUE(close_commit(d));
    const PageDelta delta;
    EXPECT_EQ(collapse_all(), 0u);
    EXPECT_EQ(delta.resident(), 0);
    open_commit(d);
    EXPECT_EQ(collapse_all(), 1u);
    unsigned open = 0;
    visit_cluster(d.chunk(), [&](Descriptor& each) {
      open += close_commit(each);
      open_commit(each);
      return true;
    });
    EXPECT_EQ(open, kClusterChunks) << "all are open again";
  });
}

// Thinned out, given back, filled up again: twice, so that nothing of the first time lasts.
TEST(Collapse, AClusterThatFillsUpAgain) {
  EXPECT_IN_CHILD([] {
    auto objects = take(of_cluster);
    char* const cluster = cluster_of(objects.front());
    for (unsigned turn = 0; turn < 2; ++turn) {
      EXPECT_EQ(collapse_all(), 1u);
      EXPECT_EQ(huge_bytes(cluster), kClusterBytes);
      const std::vector<void*> freed(objects.begin(), objects.begin() + objects.size() * 9 / 10);
      objects.erase(objects.begin(), objects.begin() + objects.size() * 9 / 10);
      give(freed);
      EXPECT_GT(purge_bins(process_store, PurgeWhich::kAll, ~size_t{0}), kClusterBytes / 2);
      EXPECT_EQ(huge_bytes(cluster), 0u);
      EXPECT_FALSE(is_cluster(cluster, kClusterHuge));
      EXPECT_EQ(collapse_all(), 0u);
      EXPECT_EQ(huge_bytes(cluster), 0u) << "it is nearly empty";
      const auto again = take(freed.size());
      objects.insert(objects.end(), again.begin(), again.end());
      EXPECT_TRUE(check_bin(process_store, bin));
    }
    for (void* object : objects) ASSERT_EQ(static_cast<char*>(object)[99], 7);
  });
}

TEST(Collapse, NoneWhereTheyAreRefused) {
  EXPECT_IN_CHILD([] {
    const auto objects = take(of_cluster);
    options.huge_pages = kHugePagesNever;
    options.decay = 10;
    for (unsigned i = 0; i < 20; ++i, sleep_ms(50)) EXPECT_FALSE(collapse_dense_clusters(process_store));
    EXPECT_EQ(huge_bytes(cluster_of(objects.front())), 0u);
  });
}

TEST(Collapse, WhatHasStayedDenseFromOnePollToTheNext) {
  EXPECT_IN_CHILD([] {
    options.decay = 100;
    const auto objects = take(of_cluster);
    char* const cluster = cluster_of(objects.front());
    Descriptor& d = *place_of(objects.front()).descriptor;
    EXPECT_TRUE(collapse_dense_clusters(process_store)) << "it is waited for";
    EXPECT_EQ(d.backing(), Backing::kDense);
    EXPECT_TRUE(collapse_dense_clusters(process_store)) << "too early";
    EXPECT_EQ(huge_bytes(cluster), 0u);
    // Something of it goes: it has to wait once more.
    const std::vector<void*> some(objects.begin(), objects.begin() + 100);
    give(some);
    EXPECT_GT(purge_bins(process_store, PurgeWhich::kAll, ~size_t{0}), 0u);
    EXPECT_EQ(d.backing(), Backing::kSmallPurged);
    EXPECT_EQ(backing_of(objects.back()), Backing::kDense) << "of its neighbours nothing went";
    EXPECT_EQ(take(100).size(), 100u);
    sleep_ms(600);
    EXPECT_TRUE(collapse_dense_clusters(process_store));
    EXPECT_EQ(d.backing(), Backing::kDense);
    EXPECT_EQ(huge_bytes(cluster), 0u);
    sleep_ms(600);
    EXPECT_TRUE(collapse_dense_clusters(process_store));
    EXPECT_EQ(d.backing(), Backing::kHuge);
    EXPECT_EQ(huge_bytes(cluster), kClusterBytes);
    sleep_ms(600);
    EXPECT_FALSE(collapse_dense_clusters(process_store)) << "nothing is left to do";
    EXPECT_TRUE(check_bin(process_store, bin));
  });
}

// What was there before a fork may be shared with the child, or the parent.
TEST(Collapse, OnlyWhatWasOpenedSinceTheLastFork) {
  EXPECT_IN_CHILD([] {
    const auto objects = take_small(of_cluster);
    collapse_note_fork();
    const auto more = take_small(of_cluster);
    EXPECT_EQ(collapse_all(), 1u);
    EXPECT_EQ(backing_of(objects.front()), Backing::kSmall);
    EXPECT_EQ(backing_of(more.front()), Backing::kHuge);
    const auto half = take_small(of_cluster / 2);
    collapse_note_fork();
    take_small(of_cluster / 2);
    EXPECT_EQ(collapse_all(), 0u) << "half of it was there before";
    EXPECT_EQ(backing_of(half.front()), Backing::kSmall);
  });
}

TEST(Collapse, HoweverManyForksThereWere) {
  for (const unsigned forks : {31u, 32u, 100u, 1000u}) {
    EXPECT_IN_CHILD([forks] {
      const auto before = take_small(of_cluster);
      for (unsigned i = 0; i <= forks; ++i) collapse_note_fork();
      const auto after = take_small(of_cluster);
      EXPECT_EQ(collapse_all(), forks % 32 == 31 ? 2u : 1u);  // the count is one modulo 32
      EXPECT_EQ(backing_of(before.front()), forks % 32 == 31 ? Backing::kHuge : Backing::kSmall);
      EXPECT_EQ(backing_of(after.front()), Backing::kHuge);
    });
  }
}

// Threads write, check, give and take beside it, and others purge.
TEST(Collapse, BesideEverythingElse) {
  if (kThreadSanitizer) GTEST_SKIP() << "it starts no threads in the child of a process of several";
  EXPECT_IN_CHILD([] {
    const unsigned of_thread = 12 * of_chunk;  // together less than from where on clusters come huge
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::vector<void*> objects = take(of_thread);
        for (unsigned turn = 0; !stop; ++turn) {
          for (void* object : objects) memset(object, static_cast<int>(t + 10), 100);
          const size_t kept = objects.size() * (turn % 4 + 1) / 5;
          give({objects.begin() + static_cast<ptrdiff_t>(kept), objects.end()});
          objects.resize(kept);
          const auto more = take(of_thread - kept);
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
