#include "store/store.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "space/pages.h"
#include "store/bin.h"
#include "store/check.h"
#include "store/purge.h"
#include "store/retire.h"
#include "unit/child.h"
#include "unit/store/purge_bins.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// Beside the process's.
constinit Store second{}, third{};

const std::array<Store*, 3> stores{&process_store, &second, &third};

Store* store_of(const void* object) {
  const Place place = place_of(object);
  if (place.descriptor == nullptr) return nullptr;
  for (Store* store : stores) {
    if (place.descriptor->block->home == &store->of(place.descriptor->bin)) return store;
  }
  return nullptr;
}

std::set<const Descriptor*> chunks_of(Store& store, BinId bin) {
  std::set<const Descriptor*> found;
  visit_chunks(store, bin, [&](Descriptor& d) {
    found.insert(&d);
    return true;
  });
  return found;
}

size_t taken_in(Store& store, BinId bin) {
  size_t taken = 0;
  visit_chunks(store, bin, [&](Descriptor& d) {
    for (unsigned folio = 0; folio < d.info().folios; ++folio) {
      taken += static_cast<size_t>(popcount(d.occupancy(folio).load(order::relaxed)));
    }
    return true;
  });
  return taken;
}

struct Object {
  char* at;
  BinId bin;
  unsigned store;
};

// Threads take from several stores at once and give all of it back mixed: neither sees the other's objects, each byte
// is its owner's, and what was taken from a store is the store's again.
TEST(Store, NoneSeesTheOthersObjects) {
  const auto child = [] {
    const std::array<BinId, 4> used{bin_of(16), bin_of(200), bin_of(3000), bin_of(20000)};
    std::array<std::array<size_t, 4>, 3> before{};
    for (unsigned s = 0; s < 3; ++s) {
      for (unsigned b = 0; b < 4; ++b) before[s][b] = taken_in(*stores[s], used[b]);
    }
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        std::vector<Object> live;
        for (unsigned step = 0; step < rounds(3000); ++step) {
          const BinId bin = used[random() % used.size()];
          if (random() % 2 == 0) {
            const unsigned s = random() % 3;
            void* some[kFolioObjects];
            const unsigned got = take_objects(*stores[s], bin, some, 1 + random() % 40);
            ASSERT_NE(got, 0u);
            for (unsigned i = 0; i < got; ++i) {
              ASSERT_EQ(store_of(some[i]), stores[s]);
              memset(some[i], static_cast<int>(17 * t + s), info_of(bin).size);
              live.push_back({static_cast<char*>(some[i]), bin, s});
            }
          } else {
            // Of one bin, of whichever store.
            std::shuffle(live.begin(), live.end(), random);
            void* some[kFolioObjects];
            unsigned n = 0;
            const unsigned most = 1 + random() % kFolioObjects;
            std::erase_if(live, [&](const Object& each) {
              if (each.bin != bin || n == most) return false;
              const size_t size = info_of(bin).size;
              EXPECT_EQ(each.at[0], static_cast<char>(17 * t + each.store));
              EXPECT_EQ(memcmp(each.at, each.at + 1, size - 1), 0);
              some[n++] = each.at;
              return true;
            });
            if (n != 0) give_objects(bin, some, n, "test");
          }
        }
        for (const Object& each : live) give_object(each.bin, each.at, "test");
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (unsigned s = 0; s < 3; ++s) {
      for (unsigned b = 0; b < 4; ++b) {
        EXPECT_EQ(taken_in(*stores[s], used[b]), before[s][b]);
        EXPECT_TRUE(check_bin(*stores[s], used[b]));
        for (unsigned other = s + 1; other < 3; ++other) {
          for (const Descriptor* d : chunks_of(*stores[s], used[b])) {
            EXPECT_FALSE(chunks_of(*stores[other], used[b]).contains(d));
          }
        }
      }
    }
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  };
  EXPECT_EQ(in_child(child), kPassed);
}

// Threads take and give in two stores while each store is purged and its free chunks are retired, so that address space
// goes from one to the other and back: no object is of both, no byte is lost, and the counts come out.
TEST(Store, AddressSpaceGoesFromOneToTheOther) {
  const auto child = [] {
    const std::array<BinId, 3> used{bin_of(48), bin_of(3000), bin_of(30000)};
    std::atomic<bool> stop{false};
    std::atomic<size_t> retired{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const unsigned s = 1 + t % 2;
        std::mt19937 random(t);
        for (unsigned round = 0; round < rounds(60); ++round) {
          const BinId bin = used[random() % used.size()];
          const size_t size = info_of(bin).size;
          std::vector<void*> live;
          for (unsigned i = 0; i < 12; ++i) {
            void* some[kFolioObjects];
            const unsigned got = take_objects(*stores[s], bin, some, kFolioObjects);
            ASSERT_NE(got, 0u);
            for (unsigned k = 0; k < got; ++k) {
              ASSERT_EQ(store_of(some[k]), stores[s]);
              memset(some[k], static_cast<int>(1 + t), size);
              live.push_back(some[k]);
            }
          }
          for (void* object : live) {
            const char* const at = static_cast<char*>(object);
            EXPECT_TRUE(at[0] == static_cast<char>(1 + t) && memcmp(at, at + 1, size - 1) == 0);
            give_object(bin, object, "test");
          }
        }
      });
    }
    threads.emplace_back([&] {
      for (unsigned i = 0; !stop; ++i) {
        Store& store = *stores[1 + i % 2];
        purge_bins(store, PurgeWhich::kNow, ~size_t{0});
        retired += retire_free_chunks(store);
      }
    });
    for (unsigned t = 0; t < 4; ++t) threads[t].join();
    stop = true;
    threads.back().join();
    EXPECT_NE(retired, 0u);
    for (const unsigned s : {1u, 2u}) {
      purge_bins(*stores[s], PurgeWhich::kAll, ~size_t{0});
      for (const BinId bin : used) {
        EXPECT_EQ(taken_in(*stores[s], bin), 0u);
        EXPECT_TRUE(check_bin(*stores[s], bin));
      }
    }
    EXPECT_EQ(page_counts.dirty.get(), 0);
    EXPECT_EQ(page_counts.resident.get(), 0);
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  };
  EXPECT_EQ(in_child(child), kPassed);
}

// A purge, a tick and retiring are a store's own; what they count all share.
TEST(Store, IsPurgedAndRetiredByItself) {
  const auto child = [] {
    const BinId bin = bin_of(1000);
    std::array<std::vector<void*>, 2> objects;
    for (unsigned s = 0; s < 2; ++s) {
      for (unsigned i = 0; i < 2000; ++i) {
        void* object;
        EXPECT_EQ(take_objects(*stores[s + 1], bin, &object, 1), 1u);
        *static_cast<char*>(object) = 1;
        objects[s].push_back(object);
      }
    }
    for (const auto& each : objects) {
      for (void* object : each) give_object(bin, object, "test");
    }
    const int64_t dirty = page_counts.dirty.get();
    const size_t purged = purge_bins(second, PurgeWhich::kNow, ~size_t{0});
    EXPECT_GT(purged, size_t{1900} * 1000);
    EXPECT_EQ(page_counts.dirty.get(), dirty - static_cast<int64_t>(purged));
    EXPECT_EQ(purge_bins(second, PurgeWhich::kNow, ~size_t{0}), 0u);
    EXPECT_EQ(purge_bins(third, PurgeWhich::kAged, ~size_t{0}), 0u) << "nobody has aged it";
    age_bins(third);
    EXPECT_GT(purge_bins(third, PurgeWhich::kAged, ~size_t{0}), size_t{1900} * 1000);
    const size_t chunks = chunks_of(third, bin).size();
    EXPECT_EQ(retire_free_chunks(third), chunks);
    EXPECT_TRUE(chunks_of(third, bin).empty());
    EXPECT_FALSE(chunks_of(second, bin).empty());
    void* again;
    EXPECT_EQ(take_objects(third, bin, &again, 1), 1u);
    EXPECT_EQ(store_of(again), &third);
    EXPECT_TRUE(check_bin(second, bin));
    EXPECT_TRUE(check_bin(third, bin));
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  };
  EXPECT_EQ(in_child(child), kPassed);
}

}  // namespace
