#include "store/take.h"

#include <algorithm>
#include <vector>

#include "store/bin.h"
#include "store/check.h"
#include "store/give.h"
#include "store/occupancy.h"
#include "store/residency.h"
#include "unit/child.h"
#include "unit/store/take_give.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// In a child, so that no test finds another one's chunks.
int run_in_child(auto&& body) {
  return in_child([&] { return body(), ::testing::Test::HasFailure() ? kFailed : kPassed; });
}
#define EXPECT_IN_CHILD(...) EXPECT_EQ(run_in_child(__VA_ARGS__), kPassed)

// Objects of one take.
std::vector<void*> take(BinId bin, unsigned want) {
  std::vector<void*> objects(want);
  objects.resize(take_objects(process_store, bin, objects.data(), want));
  return objects;
}

// How many objects of a row lie directly behind the one before.
size_t neighbours(const std::vector<void*>& objects, size_t size) {
  size_t n = 0;
  for (size_t i = 1; i < objects.size(); ++i)
    n += static_cast<char*>(objects[i]) - static_cast<char*>(objects[i - 1]) == static_cast<ptrdiff_t>(size);
  return n;
}

Descriptor& chunk_of(void* object) { return *place_of(object).descriptor; }

TEST(Take, AFreshChunkIsHandedOutInItsOrder) {
  for (const size_t size : {8, 16, 32, 48, 112, 320, 1024}) {
    EXPECT_IN_CHILD([size] {
      const BinId bin = bin_of(size);
      const auto objects = take_many(bin, info_of(bin).objects);
      EXPECT_EQ(neighbours(objects, info_of(bin).size), objects.size() - 1) << size;
    });
  }
}

// Also where all of it is resident, and whatever a take leaves over.
TEST(Take, WhatIsFreeAndResidentIsHandedOutInItsOrder) {
  for (const size_t size : {8, 16, 32, 48, 112, 320, 1024}) {
    for (const unsigned want : {kFolioObjects, kMagazineObjects}) {
      EXPECT_IN_CHILD([size, want] {
        const BinId bin = bin_of(size);
        const auto before = take_many(bin, info_of(bin).objects);
        for (void* object : before) *static_cast<char*>(object) = 1;
        give_many(bin, before);
        std::vector<void*> objects;
        while (objects.size() < before.size()) {
          for (void* object : take(bin, want)) objects.push_back(object);
        }
        objects.resize(before.size());
        EXPECT_EQ(neighbours(objects, info_of(bin).size), objects.size() - 1) << size << " by " << want;
        EXPECT_TRUE(check_bin(process_store, bin));
      });
    }
  }
}

TEST(Take, APartOfAnEmptyFolioIsNotTakenWhereHalfIsThere) {
  EXPECT_IN_CHILD([] {
    const BinId bin = bin_of(64);
    EXPECT_EQ(take(bin, kFolioObjects).size(), kFolioObjects);
    EXPECT_EQ(take(bin, kMagazineObjects).size(), kFolioObjects) << "one, and not a part of the next";
    EXPECT_EQ(take(bin, 20).size(), 20u);
    EXPECT_EQ(take(bin, kFolioObjects).size(), kFolioObjects - 20) << "the rest";
    EXPECT_EQ(take(bin, 40).size(), 40u);
    EXPECT_EQ(take(bin, kFolioObjects).size(), kFolioObjects) << "24 are less than half";
  });
}

// Takes of few objects get what they want.
TEST(Take, OneThatWantsLessThanAFolioGetsAll) {
  EXPECT_IN_CHILD([] {
    const BinId bin = bin_of(64);
    for (unsigned i = 0; i < 20; ++i) EXPECT_EQ(take(bin, kFolioObjects - 1).size(), kFolioObjects - 1u);
  });
}

TEST(Take, EmptyFoliosOnPagesThatAreNotThereAreLeftOut) {
  EXPECT_IN_CHILD([] {
    const BinId bin = bin_of(64);  // a folio a page
    const auto objects = take_many(bin, info_of(bin).objects);
    for (void* object : objects) *static_cast<char*>(object) = 1;
    Descriptor& d = chunk_of(objects[0]);
    give_many(bin, objects);
    // As if these had been purged.
    PageChange change;
    for (const unsigned page : {0u, 1u, 2u, 5u}) {
      d.resident(page / 64).fetch_and(~(uint64_t{1} << page % 64), order::relaxed);
      unmark_dirty(d, page, change);
    }
    std::vector<void*> some(3 * kFolioObjects);
    Taking t = {some.data(), 3 * kFolioObjects, nullptr};
    EXPECT_EQ(take_resident_of(d, t), 3 * kFolioObjects);
    const ChunkPages chunk(d);
    for (unsigned i = 0; i < 3; ++i) {
      const unsigned pages[] = {3, 4, 6};
      const Pages of = chunk.of(place_of(some[i * kFolioObjects]).object);
      EXPECT_EQ(of.first, pages[i]) << i;
    }
  });
}

// As a search near a limit needs them, which leaves folios whose other pages would fault.
TEST(Take, FreePagesOfFoliosInUseComeWhereNoFolioIsEmpty) {
  EXPECT_IN_CHILD([] {
    const BinId bin = bin_of(192);  // a folio on three pages
    const auto objects = take_many(bin, info_of(bin).objects);
    for (void* object : objects) *static_cast<char*>(object) = 1;
    std::vector<void*> given;
    for (unsigned i = 10; i < 50; ++i) given.push_back(objects[5 * kFolioObjects + i]);
    give_many(bin, given);
    std::vector<void*> some(kFolioObjects);
    Taking t = {some.data(), kFolioObjects, nullptr};
    EXPECT_EQ(take_resident_of(chunk_of(objects[0]), t), given.size());
    some.resize(t.got);
    EXPECT_EQ(some, given);
  });
}

// A hint that says empty of a folio that is not.
TEST(Take, StaleHintsOfEmptyFoliosAreLowered) {
  EXPECT_IN_CHILD([] {
    const BinId bin = bin_of(64);
    const auto objects = take_many(bin, kFolioObjects);
    Descriptor& d = chunk_of(objects[0]);
    raise_folio(d, 0, kEmpty);
    EXPECT_EQ(find_folio(d, kEmpty), 0);
    void* some[kFolioObjects];
    Taking t = {some, kFolioObjects, nullptr};
    take_resident_of(d, t);
    EXPECT_NE(find_folio(d, kEmpty), 0);
    for (unsigned i = 0; i < t.got; ++i) EXPECT_FALSE(std::count(objects.begin(), objects.end(), some[i]));
  });
}

}  // namespace
