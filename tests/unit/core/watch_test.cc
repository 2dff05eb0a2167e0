#include "store/watch.h"

#include <thread>

#include "cache/thread_caches.h"
#include "space/chunk_table.h"
#include "unit/core/heap.h"
#include "unit/stderr_capture.h"

using namespace folio;
using namespace folio_test;

namespace {

class Watch : public ::testing::Test {
 protected:
  Watch() {
    options.errors = kErrorsWarn;
    options.housekeeper = kHousekeeperOff;
    options.watch = 300;
  }
  ~Watch() override { expect_everything_free(); }

  static std::string freed(void* object) {
    StderrCapture capture;
    release(object, "FUNC");
    return capture.stop();
  }
  static bool found(const std::string& reported, const char* what) { return reported.find(what) != std::string::npos; }

 private:
  SavedOptions saved_;
};

TEST_F(Watch, AFreeGoesToItsFolio) {
  for (const size_t size : {size_t{8}, size_t{200}, size_t{3000}, size_t{20000}}) {
    void* const object = alloc(size);
    ASSERT_TRUE(is_watched(object));
    EXPECT_EQ(chunk_code(object), index(bin_of(size)));
    EXPECT_TRUE(place_of(object).taken());
    EXPECT_EQ(freed(object), "");
    EXPECT_FALSE(place_of(object).taken());
  }
}

TEST_F(Watch, MisuseIsFoundAtOnce) {
  for (const size_t size : {size_t{24}, size_t{200}, size_t{3000}}) {
    std::vector<void*> others;
    for (unsigned i = 0; i < 50; ++i) others.push_back(alloc(size));
    auto* const object = static_cast<char*>(alloc(size));
    for (const size_t off : {size_t{1}, size_t{8}, size / 2, size - 1}) {
      EXPECT_TRUE(found(freed(object + off), "not the start of an object: inside a")) << off;
    }
    EXPECT_EQ(freed(object), "");
    std::thread([&] {
      for (void* other : others) EXPECT_EQ(freed(other), "");
    }).join();
    EXPECT_TRUE(found(freed(object), "double free of a"));
    EXPECT_TRUE(found(freed(others[0]), "double free of a"));
    std::thread([&] { EXPECT_TRUE(found(freed(object), "double free of a")); }).join();
  }
}

TEST_F(Watch, WhatACacheHoldsForAMallocIsFree) {
  auto* const object = static_cast<char*>(alloc(48));
  for (unsigned i = 1; i < 20; ++i) {
    EXPECT_TRUE(found(freed(object + i * 48), "double free of a 48-byte object")) << i;
  }
  std::vector<void*> next;
  for (unsigned i = 0; i < 200; ++i) next.push_back(alloc(48));
  std::sort(next.begin(), next.end());
  EXPECT_EQ(std::unique(next.begin(), next.end()), next.end()) << "none twice";
  for (void* each : next) EXPECT_EQ(freed(each), "");
  EXPECT_EQ(freed(object), "");
}

// A glance at the magazine's ends is not enough where its objects do not ascend.
TEST_F(Watch, WhatACacheHoldsIsFreeInWhateverOrder) {
  std::vector<void*> objects;
  while (objects.size() < 1000) objects.push_back(alloc(48));
  std::sort(objects.begin(), objects.end());
  // Of the last folio but one few, so that a take begins with these; of the first many.
  const auto folio_of = [](void* object) { return place_of(object).object / kFolioObjects; };
  const unsigned last = folio_of(objects.back()) - 1;
  unsigned few = 0, many = 0;
  for (void* each : objects) {
    if (folio_of(each) == last ? few++ < 3 : folio_of(each) == 0 && many++ < 50) {
      EXPECT_EQ(freed(each), "");
    }
  }
  void* next = alloc(48);
  std::vector<void*> more;
  for (unsigned i = 0; i < 1000 && folio_of(next) != last; ++i) {
    more.push_back(next);
    next = alloc(48);
  }
  ASSERT_EQ(folio_of(next), last);
  unsigned held = 0;
  for (void* each : objects) {
    if (folio_of(each) != 0 || !thread_cache_holds(*thread_cache(), bin_of(48), each)) continue;
    EXPECT_TRUE(found(freed(each), "double free of a 48-byte object"));
    ++held;
  }
  EXPECT_NE(held, 0u);
  more.push_back(next);
  for (void* each : more) EXPECT_EQ(freed(each), "");
  for (void* each : objects) {
    if (place_of(each).taken() && !thread_cache_holds(*thread_cache(), bin_of(48), each)) EXPECT_EQ(freed(each), "");
  }
}

// Each bin has its share, whatever comes between.
TEST_F(Watch, EndsAboutThereWhereNotEachFreeIsCounted) {
  options.watch = 2048;
  ASSERT_FALSE(watch_counts_each());
  void* const object = alloc(100);
  void* const other = alloc(200);
  unsigned frees = 0, others = 0;
  for (; is_watched(other) && others < 3000; ++others) {
    for (unsigned i = 0; i + 1 < kWatchCountEvery; ++i) {
      if (is_watched(object)) ++frees;
      free_object(alloc(100));
    }
    free_object(alloc(200));
  }
  EXPECT_NEAR(frees, 2048u, 2 * kWatchCountEvery);
  EXPECT_NEAR(others, 2048u, 2 * kWatchCountEvery);
  free_object(object);
  free_object(other);
}

// Threads at once lose no count: what has ended does not begin anew.
TEST_F(Watch, EndsOnceAndForAll) {
  options.watch = 3000;
  const BinId bin = bin_of(100);
  void* const object = alloc(100);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (unsigned n = 0; n < 100 * 3; ++n) watch_free(process_store, bin, object, 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(process_store.of(bin).watched.get(), 8u * 300 * 2);
  EXPECT_FALSE(watch_wanted(process_store, bin));
  free_object(object);
}

TEST_F(Watch, EndsWhenABinHasHadItsShare) {
  void* const object = alloc(100);
  unsigned frees = 0;
  for (; is_watched(object) && frees < 1000; ++frees) free_object(alloc(100));
  EXPECT_EQ(frees, 300u);
  EXPECT_FALSE(watch_wanted(process_store, bin_of(100)));
  EXPECT_TRUE(watch_wanted(process_store, bin_of(1000)));
  void* const cached = alloc(100);
  free_object(cached);
  EXPECT_TRUE(place_of(cached).taken());
  free_object(object);
}

TEST_F(Watch, EndsWhenAllTogetherHaveHadTheirs) {
  for (const BinId bin : all_bins()) {
    if (index(bin) >= kFirstAligned) break;
    for (unsigned i = 0; i < 299; ++i) free_object(alloc(info_of(bin).size));
  }
  EXPECT_FALSE(watch_wanted(process_store, aligned_bin(4096, 4096)));
}

TEST_F(Watch, WithoutDecayPagesGoInTheCallThatFrees) {
  options.decay = 0;
  for (const size_t size : {size_t{5000}, size_t{30000}}) {
    std::vector<void*> objects;
    for (unsigned i = 0; i < 20; ++i) {
      objects.push_back(alloc(size));
      fill(objects.back(), size, 1);
    }
    const PageDelta delta;
    for (void* object : objects) {
      ASSERT_TRUE(is_watched(object));
      free_object(object);
      EXPECT_EQ(page_counts.dirty.get(), 0) << size;
    }
  }
}

TEST_F(Watch, OffByTheOption) {
  options.watch = 0;
  free_object(alloc(64));
  void* const object = alloc(64);
  EXPECT_FALSE(is_watched(object));
  free_object(object);
}

// Between a free and its count the chunk may leave its bin (store/retire.h): another bin has it by then.
TEST_F(Watch, AnEntryThatIsAnotherBinsStays) {
  void* const object = alloc(100);
  ASSERT_TRUE(is_watched(object));
  const uint16_t mine = chunk_entry(object).load(order::relaxed);
  const auto others = static_cast<uint16_t>(index(bin_of(3000)) * kCursorBytes);
  chunk_entry(object).store(others, order::relaxed);
  options.watch = 0;
  watch_free(process_store, bin_of(100), object);
  EXPECT_EQ(chunk_entry(object).load(order::relaxed), others);
  chunk_entry(object).store(mine, order::relaxed);
  watch_free(process_store, bin_of(100), object);
  EXPECT_FALSE(is_watched(object));
  EXPECT_EQ(chunk_code(object), index(bin_of(100)));
  EXPECT_EQ(freed(object), "");
}

}  // namespace
