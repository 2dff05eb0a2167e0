// Which large objects bring huge pages, and what becomes of the rest of their clusters.
#include "space/large_huge.h"

#include "space/chunks.h"
#include "space/huge_pace.h"
#include "space/room.h"
#include "unit/space/large_objects.h"

namespace {

bool is_advised(const char* address) {
  const Field& f = *large_place(address).field;
  return (f.advised.load(order::relaxed) >> (address - f.base) / kClusterBytes & 1) != 0;  // relaxed: quiet
}
size_t resident_in_cluster(const char* object) { return resident_bytes(cluster_start(object), kClusterBytes); }

unsigned advised_clusters() {
  unsigned sum = 0;
  for (Field* f = first_field(process_fields); f != nullptr; f = next_field(*f)) {
    sum += static_cast<unsigned>(__builtin_popcount(f->advised.load(order::relaxed)));  // relaxed: quiet
  }
  return sum;
}

class LargeHuge : public Large {
 protected:
  LargeHuge() { page_counts.huge_live.add(8 * kMiB); }  // as in a process that holds more
  void SetUp() override {
    if (page != kPageBytesLeast || kEmulated || !os::huge_pages_come()) GTEST_SKIP() << "no huge pages here";
    for (unsigned i = 0; i < 8; ++i) note_huge_page(100, true);  // whatever earlier tests found: so many are trusted
  }
  ~LargeHuge() override {
    page_counts.huge_live.sub(8 * kMiB);
    large_purge(process_fields, true, kNoLimit);
    EXPECT_EQ(advised_clusters(), 0u);
    for (unsigned i = 0; i < 2; ++i) large_age(process_fields);  // so that the next test's may come
  }
};

TEST_F(LargeHuge, WhatNeedNotBeZeroBringsItsClusterAndLeavesTheRestToOthers) {
  char* const object = alloc(600 * kKiB);
  ASSERT_TRUE(is_advised(object));
  EXPECT_EQ(delta_.resident(), static_cast<int64_t>(kClusterBytes));
  EXPECT_EQ(delta_.dirty(), static_cast<int64_t>(kClusterBytes - round_up(600 * kKiB + kLineOffsetMost, step)));
  object[0] = 1;
  EXPECT_EQ(resident_in_cluster(object), kClusterBytes);
  char* const other = alloc(40 * kKiB);
  EXPECT_EQ(cluster_start(other), cluster_start(object)) << "whose pages are there";
  EXPECT_EQ(delta_.resident(), static_cast<int64_t>(kClusterBytes));
  expect_exact_accounts();
  free_all({object, other});
}

TEST_F(LargeHuge, ZeroesAreThoseOfTheKernelOrMade) {
  char* const object = alloc(600 * kKiB);
  memset(cluster_start(object), 7, offset_of(object));
  memset(object, 7, usable(object));
  free_all({object});
  char* const zeroed = alloc(600 * kKiB, 1, true);
  EXPECT_EQ(std::count(zeroed, zeroed + 600 * kKiB, 0), static_cast<ptrdiff_t>(600 * kKiB));
  free_all({zeroed});
}

TEST_F(LargeHuge, NotForZeroesNorSmallerOnesNorWhereItIsRefused) {
  std::vector<char*> objects = {alloc(3 * kMiB, 1, true), alloc(200 * kKiB), alloc(256 * kKiB)};
  options.huge_pages = kHugePagesNever;
  objects.push_back(alloc(3 * kMiB));
  options.huge_pages = kHugePagesAuto;
  memory_room.tight.set(true);
  objects.push_back(alloc(3 * kMiB));
  memory_room.tight.set(false);
  EXPECT_EQ(advised_clusters(), 0u);
  free_all(objects);
}

TEST_F(LargeHuge, NotInASmallProcess) {
  page_counts.huge_live.sub(8 * kMiB);
  std::vector<char*> objects = {alloc(3 * kMiB)};
  EXPECT_EQ(advised_clusters(), 0u);
  objects.push_back(alloc(6 * kMiB));
  EXPECT_NE(advised_clusters(), 0u) << "with it, there are 9 MiB";
  page_counts.huge_live.add(8 * kMiB);
  free_all(objects);
}

TEST_F(LargeHuge, WhatIsRefusedLeavesNoAdvice) {
  constexpr unsigned kMost = kForeseenMost / kClusterBytes;
  char* const object = alloc(kMiB, 1, true);
  memory_room.most_large.set(held_bytes() + static_cast<int64_t>(3 * kMiB));
  for (unsigned i = 0; i < 3; ++i) {
    EXPECT_EQ(alloc(7 * kMiB), nullptr);
    EXPECT_FALSE(large_resize(object, 8 * kMiB));
  }
  memory_room.most_large.set(MemoryRoom::kUnlimited);
  EXPECT_EQ(advised_clusters(), 0u);
  EXPECT_TRUE(foreseen_large.has_room(kMost));
  expect_exact_accounts();
  free_all({object});
}

TEST_F(LargeHuge, NotWhereSomethingElseIsOrWas) {
  char* const first = alloc(200 * kKiB);
  char* const second = alloc(600 * kKiB);
  ASSERT_EQ(cluster_start(first), cluster_start(second));
  EXPECT_FALSE(is_advised(second)) << "beside another object";
  memset(first, 1, 200 * kKiB);
  free_all({first, second});
  char* const third = alloc(900 * kKiB);
  ASSERT_EQ(cluster_start(first), cluster_start(third));
  EXPECT_FALSE(is_advised(third)) << "of which pages are there";
  free_all({third});
}

TEST_F(LargeHuge, EachClusterThatAnObjectTouches) {
  char* const object = alloc(5 * kMiB);
  EXPECT_EQ(advised_clusters(), 3u);
  memset(object, 1, 5 * kMiB);
  EXPECT_EQ(delta_.resident(), static_cast<int64_t>(3 * kClusterBytes));
  EXPECT_EQ(resident_in_fields(), 3 * kClusterBytes);
  free_all({object});
}

TEST_F(LargeHuge, AnObjectThatGrowsBringsTheNextCluster) {
  char* const object = alloc(kMiB);
  EXPECT_EQ(advised_clusters(), 1u);
  ASSERT_TRUE(large_resize(object, 3 * kMiB));
  EXPECT_EQ(advised_clusters(), 2u);
  memset(object, 1, 3 * kMiB);
  EXPECT_EQ(resident_in_fields(), 2 * kClusterBytes);
  expect_exact_accounts();
  free_all({object});
}

TEST_F(LargeHuge, APurgeOfAPartTakesTheAdviceBackAndTheNextObjectBringsItAgain) {
  for (unsigned turn = 0; turn < 3; ++turn) {
    char* const object = alloc(600 * kKiB);
    ASSERT_TRUE(is_advised(object)) << turn;
    object[0] = 1;
    if (turn != 0 && resident_in_cluster(object) == page) {
      free_all({object});
      GTEST_SKIP() << "before Linux 6.14 the table of small pages stays";
    }
    large_purge(process_fields, true, kNoLimit);
    EXPECT_FALSE(is_advised(object));
    EXPECT_EQ(resident_in_cluster(object), round_up(600 * kKiB + kLineOffsetMost, step));
    expect_exact_accounts();
    free_all({object});
    large_purge(process_fields, true, kNoLimit);
    EXPECT_EQ(resident_in_fields(), 0u);
    for (unsigned i = 0; i < 2; ++i) large_age(process_fields);
  }
}

TEST_F(LargeHuge, NoMoreThanSoManyAreForeseen) {
  constexpr unsigned kMost = kForeseenMost / kClusterBytes;
  std::vector<char*> objects;
  for (unsigned i = 0; i < kMost + 8; ++i) {
    for (unsigned n = 0; n < 8; ++n) note_huge_page(100, true);
    objects.push_back(alloc(kClusterBytes - kLineOffsetMost));
  }
  EXPECT_EQ(advised_clusters(), kMost);
  EXPECT_FALSE(foreseen_large.has_room(1));
  expect_exact_accounts();
  free_all(objects);
  large_purge(process_fields, true, kNoLimit);
  EXPECT_TRUE(foreseen_large.has_room(kMost));
}

// One object in each cluster lives on, of which a byte is written: these clusters count as long as it does.
TEST_F(LargeHuge, SparseObjectsThatStayLoseNoMoreThanThat) {
  std::vector<char*> objects;
  for (unsigned i = 0; i < 100; ++i) {
    for (unsigned n = 0; n < 8; ++n) note_huge_page(100, true);
    objects.push_back(alloc(1200 * kKiB, kClusterBytes));
    *objects.back() = 1;
    if (i % 10 == 0) large_purge(process_fields, true, kNoLimit);
  }
  large_purge(process_fields, true, kNoLimit);
  EXPECT_EQ(advised_clusters(), 0u);
  EXPECT_LE(resident_in_fields(), kForeseenMost + 100 * page);
  EXPECT_FALSE(foreseen_large.has_room(1));
  free_all(objects);
  large_purge(process_fields, true, kNoLimit);
  EXPECT_TRUE(foreseen_large.has_room(kForeseenMost / kClusterBytes));
}

TEST_F(LargeHuge, AClusterThatWasJustPurgedWaits) {
  char* const object = alloc(600 * kKiB);
  ASSERT_TRUE(is_advised(object));
  object[0] = 1;
  free_all({object});
  large_purge(process_fields, true, kNoLimit);
  for (unsigned i = 0; i < 2; ++i, large_age(process_fields)) {
    char* const soon = alloc(600 * kKiB);
    EXPECT_EQ(cluster_start(soon), cluster_start(object));
    EXPECT_FALSE(is_advised(soon)) << i;
    free_all({soon});
    large_purge(process_fields, true, kNoLimit);
  }
  char* const later = alloc(600 * kKiB);
  EXPECT_TRUE(is_advised(later));
  free_all({later});
}

// As in a program that has used all clusters once.
TEST_F(LargeHuge, AHugePageIsTriedWhereNoneIsTrusted) {
  note_huge_page(10'000'000, true);  // a slow one: a pause
  char* const none = alloc(600 * kKiB);
  EXPECT_FALSE(is_advised(none));
  note_huge_page(100, true);
  while (trust_huge_pages()) {
  }
  char* const object = alloc(3 * kMiB);
  if (huge_pages_due()) EXPECT_TRUE(is_advised(object + kClusterBytes));
  free_all({none, object});
}

TEST_F(LargeHuge, ThreadsThatMeetInAClusterKeepTheirObjects) {
  std::atomic<unsigned> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&wrong, t] {
      std::mt19937 random(t);
      std::vector<std::pair<char*, size_t>> live;
      for (unsigned i = 0; i < rounds(3000); ++i) {
        const size_t size = 100 * kKiB + random() % (random() % 4 == 0 ? 4 * kMiB : 600 * kKiB);
        char* const object = alloc(size, 1, random() % 4 == 0);
        object[0] = object[size - 1] = static_cast<char>(t * 64 + i % 64);
        live.emplace_back(object, size);
        if (live.size() < 6 && random() % 3 != 0) continue;
        std::swap(live[random() % live.size()], live.back());
        const auto [gone, its] = live.back();
        wrong += gone[0] != gone[its - 1];
        large_free(gone);
        live.pop_back();
        if (random() % 16 == 0) large_purge(process_fields, random() % 2 == 0, kMiB);
        if (random() % 16 == 0) large_age(process_fields);
      }
      for (const auto& [object, its] : live) {
        wrong += object[0] != object[its - 1];
        large_free(object);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  expect_exact_accounts();
}

}  // namespace
