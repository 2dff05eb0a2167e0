#include "cache/magazine.h"

#include <sys/resource.h>

#include <set>

#include "unit/cache/magazines.h"
#include "unit/child.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

void* object(unsigned i) { return reinterpret_cast<void*>(uintptr_t{i + 1} * 16); }

class MagazineTest : public ::testing::Test {
 protected:
  // Formats it, and parks it with objects first, first + 1, ... from the top down.
  static void fill(Magazine& magazine, unsigned capacity, unsigned n, unsigned first = 0) {
    Slot* const top = magazine.format(capacity) - n;
    for (unsigned i = 0; i < n; ++i) top[i] = object(first + i);
    magazine.park(top);
  }
  static void expect(Magazine& magazine, unsigned capacity, unsigned n, unsigned first = 0) {
    ASSERT_EQ(magazine.bottom(), capacity);
    ASSERT_EQ(magazine.count(), n);
    for (unsigned i = 0; i < n; ++i) ASSERT_EQ(magazine.top()[i], object(first + i)) << i;
    ASSERT_EQ(*magazine.slot(capacity), nullptr) << "the bottom says empty";
    ASSERT_EQ(Magazine::of(magazine.top()), &magazine);
  }
  Magazine& a_ = *empty_magazine();
  Magazine& b_ = *empty_magazine();
};

TEST_F(MagazineTest, TheTopTellsEmptyAndFull) {
  for (unsigned capacity = 1; capacity <= kMagazineObjects; ++capacity) {
    Slot* top = a_.format(capacity);
    EXPECT_EQ(a_.bottom(), capacity);
    EXPECT_EQ(*top, nullptr) << "empty is a null";
    // As the fast path of free fills it.
    unsigned n = 0;
    while (reinterpret_cast<uintptr_t>(top) % kMagazineBytes != 0) {
      *--top = object(n++);
      ASSERT_EQ(Magazine::of(top), &a_);
    }
    EXPECT_EQ(n, capacity) << "full is low 9 bits of 0";
    a_.park(top);
    EXPECT_EQ(a_.count(), capacity);
    // As the fast path of malloc empties it: last in, first out.
    while (*top != nullptr) EXPECT_EQ(*top++, object(--n));
    EXPECT_EQ(n, 0u);
    a_.park(top);
    EXPECT_EQ(a_.count(), 0u);
  }
}

TEST_F(MagazineTest, HeaderFieldsDoNotDisturbEachOther) {
  auto* const high = reinterpret_cast<Magazine*>((uintptr_t{1} << arch::kAddressBits) - kMagazineBytes);
  for (const unsigned n : {0u, 1u, 31u, 62u}) {
    for (const unsigned length : {1u, 8u, 255u}) {
      for (Magazine* const next : {static_cast<Magazine*>(nullptr), &b_, high}) {
        fill(a_, kMagazineObjects, n);
        a_.set_next(next);
        a_.set_bundle_length(length);
        a_.park(a_.top());
        EXPECT_EQ(a_.next(), next);
        EXPECT_EQ(a_.bundle_length(), length);
        expect(a_, kMagazineObjects, n);
        a_.set_bundle_length(3);
        a_.set_next(nullptr);
        EXPECT_EQ(a_.bundle_length(), 3u);
        EXPECT_EQ(a_.next(), nullptr);
        expect(a_, kMagazineObjects, n);
      }
    }
  }
}

TEST_F(MagazineTest, SetCapacityKeepsTheObjects) {
  for (unsigned from = 1; from <= kMagazineObjects; ++from) {
    for (unsigned n = 0; n <= from; ++n) {
      for (unsigned to = std::max(n, 1u); to <= kMagazineObjects; ++to) {
        fill(a_, from, n);
        a_.set_capacity(to);
        expect(a_, to, n);
        if (HasFatalFailure()) FAIL() << from << " to " << to << " with " << n;
      }
    }
  }
}

TEST_F(MagazineTest, TakeFromMovesTheTopOnesOver) {
  for (unsigned have = 0; have <= kMagazineObjects; ++have) {
    for (unsigned n = 0; n + have <= kMagazineObjects; ++n) {
      fill(a_, kMagazineObjects, have, 1000);
      fill(b_, kMagazineObjects, n);
      a_.take_from(&b_, n);
      ASSERT_EQ(a_.count(), have + n);
      for (unsigned i = 0; i < n; ++i) ASSERT_EQ(a_.top()[i], object(i));
      for (unsigned i = 0; i < have; ++i) ASSERT_EQ(a_.top()[n + i], object(1000 + i));
      ASSERT_EQ(b_.count(), 0u);
    }
  }
}

TEST_F(MagazineTest, GiveToSplitsOffTheTopOnes) {
  for (unsigned have = 1; have <= kMagazineObjects; ++have) {
    for (unsigned n = 1; n <= have; ++n) {
      fill(a_, kMagazineObjects, have);
      a_.set_next(&b_);
      b_.format(5);
      a_.give_to(&b_, n);
      expect(b_, n, n);
      expect(a_, kMagazineObjects, have - n, n);
      ASSERT_EQ(a_.next(), &b_) << "its links stay";
    }
  }
}

TEST_F(MagazineTest, AStackKeepsAllButTheLink) {
  MagazineStack stack;
  fill(a_, kMagazineObjects, 62);
  a_.set_next(&b_);
  a_.set_bundle_length(2);
  Magazine& below = *empty_magazine();
  stack.push(&below);
  stack.push(&a_);
  ASSERT_EQ(stack.pop(), &a_);
  EXPECT_EQ(*a_.slot(kMagazineObjects), &below) << "the link lies where the bottom's null is";
  a_.forget_stack_link();
  expect(a_, kMagazineObjects, 62);
  EXPECT_EQ(a_.next(), &b_);
  EXPECT_EQ(a_.bundle_length(), 2u);
}

TEST(MagazinePool, ListsOfFreshMagazinesThatAreApart) {
  std::set<Magazine*> seen;
  std::vector<Magazine*> lists;
  for (unsigned i = 0; i < 20; ++i) {
    Magazine* const list = magazines_get();
    ASSERT_NE(list, nullptr);
    lists.push_back(list);
    unsigned length = 0;
    for (Magazine* m = list; m != nullptr; m = m->next(), ++length) {
      EXPECT_TRUE(aligned_to(m, kMagazineBytes));
      EXPECT_TRUE(seen.insert(m).second) << "given out twice";
    }
    EXPECT_GE(length, 1u);
    EXPECT_LE(length * kMagazineBytes, kPageBytesLeast) << "a thread that needs few touches one page";
  }
  for (Magazine* list : lists) magazines_put(list);
  for (unsigned i = 0; i < lists.size(); ++i) EXPECT_EQ(seen.count(magazines_get()), 1u) << "used again";
}

// The kernel is not asked in each call once it has refused, and is asked again.
TEST(MagazinePool, ARefusalIsRememberedForAWhile) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "they need address space of their own";
  const int result = in_child([] {
    rlimit limit;
    if (getrlimit(RLIMIT_DATA, &limit) != 0) return kCannot;
    const rlimit tight{4096, limit.rlim_max};
    if (setrlimit(RLIMIT_DATA, &tight) != 0) return kCannot;
    while (magazines_get() != nullptr) {
    }
    if (setrlimit(RLIMIT_DATA, &limit) != 0) return kCannot;
    unsigned without = 0;
    while (magazines_get() == nullptr && without < 100000) ++without;
    return without >= 10 && without <= 1000 ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limit on data can be set here";
  EXPECT_EQ(result, kPassed);
}

TEST(MagazinePool, DrainGivesTheObjectsToTheirFolios) {
  const BinId bin = bin_of(64);
  Magazine* const magazine = magazine_of(bin, 40);
  const std::vector<void*> objects = objects_of(magazine);
  bundle_drain(bin, magazine, "test");
  for (void* each : objects) EXPECT_FALSE(place_of(each).taken());
  Magazine* const next = magazines_get();
  EXPECT_EQ(next, magazine) << "the magazine is in the pool";
  EXPECT_EQ(next->next(), nullptr);
  EXPECT_TRUE(check_bin(process_store, bin));
}

}  // namespace
