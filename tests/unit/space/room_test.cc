#include "space/room.h"

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

}  // namespace
