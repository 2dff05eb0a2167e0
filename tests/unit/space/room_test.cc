#include "space/room.h"

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "space/huge.h"
#include "space/large.h"
#include "space/metadata.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// No more than is held now, and `more`.
class NoRoom {
 public:
  explicit NoRoom(size_t more = 0) {
    memory_room.most_small.set(held_bytes() + static_cast<int64_t>(more));
    memory_room.most_large.set(held_bytes() + static_cast<int64_t>(more));
  }
  ~NoRoom() {
    memory_room.most_small.set(MemoryRoom::kUnlimited);
    memory_room.most_large.set(MemoryRoom::kUnlimited);
  }
  NoRoom(const NoRoom&) = delete;
  NoRoom& operator=(const NoRoom&) = delete;
};

TEST(Room, HeldIsPagesHugeObjectsAndMetadata) {
  const SavedOptions saved;
  options.dirty_floor = 1000;
  const int64_t before = held_bytes();
  HugeBlock* const block = huge_alloc(20 * kMiB, kClusterBytes);
  ASSERT_NE(block, nullptr);
  EXPECT_GE(held_bytes(), before + static_cast<int64_t>(20 * kMiB));
  huge_free(block);
  EXPECT_GE(held_bytes(), before + static_cast<int64_t>(20 * kMiB));  // free, but there
  huge_purge(true, ~size_t{0});
  EXPECT_LT(held_bytes(), before + static_cast<int64_t>(kMiB));
  const int64_t less = held_bytes();
  ASSERT_NE(metadata_alloc(4096), nullptr);
  EXPECT_EQ(held_bytes(), less + 4096);
}

TEST(Room, LargeObjectsGetNoNewPagesButThoseThatAreThere) {
  void* const object = large_alloc(process_fields, kMiB, 1, false);
  ASSERT_NE(object, nullptr);
  {
    const NoRoom no_room;
    EXPECT_EQ(large_alloc(process_fields, kMiB, 1, false), nullptr);
    EXPECT_FALSE(large_resize(object, 2 * kMiB));
    EXPECT_TRUE(large_free(object));
    void* const again = large_alloc(process_fields, kMiB, 1, false);
    EXPECT_NE(again, nullptr);
    EXPECT_TRUE(large_free(again));
  }
  EXPECT_TRUE(large_check(process_fields));
}

TEST(Room, HugeObjectsGetNoNewPagesButThoseThatAreThere) {
  HugeBlock* const block = huge_alloc(20 * kMiB, kClusterBytes);
  ASSERT_NE(block, nullptr);
  {
    const NoRoom no_room(8 * kMiB);
    EXPECT_EQ(huge_alloc(20 * kMiB, kClusterBytes), nullptr);
    EXPECT_FALSE(huge_resize(block, 30 * kMiB));
    EXPECT_TRUE(huge_resize(block, 26 * kMiB));
    EXPECT_TRUE(huge_resize(block, 20 * kMiB));
    huge_free(block);
    HugeBlock* const again = huge_alloc(20 * kMiB, kClusterBytes);
    EXPECT_EQ(again, block);
    HugeBlock* const moved = huge_move(again, 24 * kMiB);  // needs 4 MiB more, not 24
    ASSERT_NE(moved, nullptr);
    huge_free(moved);
  }
  huge_purge(true, ~size_t{0});
}

// Room for one of them, asked for by several threads at once. (Each looked first and counted then: two had room.)
TEST(Room, HugeObjectsAtOnceGetNoMoreThanThereIs) {
  const SavedOptions saved;
  options.dirty_floor = 0;
  constexpr unsigned kThreads = 4, kTurns = 300;
  constexpr size_t kBytes = 9 * kMiB;
  huge_purge(true, ~size_t{0});
  huge_free(huge_alloc(kBytes, 1));  // what else it needs is there
  huge_purge(true, ~size_t{0});
  const NoRoom no_room(kBytes + kMiB);
  std::atomic<unsigned> got{0}, too_many{0}, turns_with_one{0};
  std::barrier all(kThreads);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (unsigned turn = 0; turn < kTurns; ++turn) {
        all.arrive_and_wait();
        HugeBlock* const block = huge_alloc(kBytes, 1);
        if (block != nullptr) got.fetch_add(1);
        all.arrive_and_wait();
        if (i == 0) {
          const unsigned n = got.exchange(0);
          if (n > 1) too_many.fetch_add(1);
          if (n == 1) turns_with_one.fetch_add(1);
        }
        if (block != nullptr) huge_free(block);
        huge_purge(true, ~size_t{0});  // so that each turn maps a new one, which takes a while
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(too_many.load(), 0u);
  EXPECT_GT(turns_with_one.load(), 0u);
  huge_purge(true, ~size_t{0});
}

TEST(Room, ARequestThatCannotBeMetTakesNoneFromOthers) {
  const NoRoom no_room(4 * kMiB);
  constexpr unsigned kRequests = 200000;
  std::atomic<unsigned> asked{0};
  std::thread greedy([&] {
    for (; asked.load() < kRequests; asked.fetch_add(1)) EXPECT_EQ(huge_alloc(size_t{1} << 45, 1), nullptr);
  });
  unsigned refused = 0;
  while (asked.load() < kRequests) refused += has_room(kMiB) ? 0 : 1;
  greedy.join();
  EXPECT_EQ(refused, 0u);
}

// Of objects that grow in place, too.
TEST(Room, HugeObjectsThatGrowAtOnceGetNoMoreThanThereIs) {
  constexpr unsigned kThreads = 4, kTurns = 300;
  const SavedOptions saved;
  options.dirty_floor = 0;
  std::vector<HugeBlock*> blocks;
  for (unsigned i = 0; i < kThreads; ++i) blocks.push_back(huge_alloc(9 * kMiB, 1));
  std::atomic<unsigned> grown{0}, too_many{0};
  std::barrier all(kThreads);
  const NoRoom no_room(3 * kMiB);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (unsigned turn = 0; turn < kTurns; ++turn) {
        all.arrive_and_wait();
        if (huge_resize(blocks[i], 11 * kMiB)) grown.fetch_add(1);
        all.arrive_and_wait();
        if (i == 0 && grown.exchange(0) > 1) too_many.fetch_add(1);
        EXPECT_TRUE(huge_resize(blocks[i], 9 * kMiB));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(too_many.load(), 0u);
  for (HugeBlock* block : blocks) huge_free(block);
  huge_purge(true, ~size_t{0});
}

}  // namespace
