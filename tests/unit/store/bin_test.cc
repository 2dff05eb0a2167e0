#include "store/bin.h"

#include "store/check.h"
#include "store/occupancy.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "os/os.h"
#include "space/chunks.h"
#include "space/metadata.h"
#include "space/region.h"
#include "store/purge.h"
#include "store/residency.h"
#include "unit/cache/magazines.h"
#include "unit/child.h"
#include "unit/mappings.h"
#include "unit/store/purge_bins.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// Objects of one bin; what is still held at the end is given back.
class Taken {
 public:
  explicit Taken(BinId bin) : bin_(bin) {}
  ~Taken() { give_all(); }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  // Takes exactly n, one call for each.
  void take(unsigned n) {
    for (unsigned i = 0; i < n; ++i) {
      void* object = nullptr;
      ASSERT_EQ(take_objects(process_store, bin_, &object, 1), 1u);
      objects_.push_back(object);
    }
  }
  void give(size_t at) {
    give_objects(bin_, &objects_[at], 1, "test");
    objects_.erase(objects_.begin() + static_cast<ptrdiff_t>(at));
  }
  // Gives objects [from, to), which leaves the others where they are in the list.
  void give(size_t from, size_t to) {
    for (size_t i = to; i > from; --i) give(i - 1);
  }
  void give_all() { give(0, objects_.size()); }
  void* at(size_t i) const { return objects_[i]; }
  void* last() const { return objects_.back(); }
  size_t count() const { return objects_.size(); }

 private:
  BinId bin_;
  std::vector<void*> objects_;
};

const BinId bin64 = bin_of(64);

TEST(Bin, TakesWhatIsAskedForAllDifferentAndAligned) {
  for (const BinId bin : all_bins()) {
    const BinInfo& info = info_of(bin);
    std::set<void*> seen;
    for (const unsigned want : {1u, 7u, 62u, 63u}) {
      void* objects[64] = {};
      const unsigned got = take_objects(process_store, bin, objects, want);
      ASSERT_GE(got, 1u);
      ASSERT_LE(got, want);
      // An empty chunk has as many as anybody may want, but for the bins of which it holds fewer.
      if (info.objects >= 63 + 62 + 7 + 1) EXPECT_EQ(got, want) << "bin " << index(bin);
      for (unsigned i = 0; i < got; ++i) {
        ASSERT_TRUE(seen.insert(objects[i]).second);
        ASSERT_EQ(chunk_code(objects[i]), index(bin));
        ASSERT_TRUE(aligned_to(objects[i], size_t{1} << info.natural_shift));
        const Place place = place_of(objects[i]);
        ASSERT_TRUE(place.taken());
        ASSERT_EQ(place.base, objects[i]);
        // All of the slot can be written.
        static_cast<char*>(objects[i])[0] = place.slot_end[-1] = 1;
      }
    }
    EXPECT_TRUE(check_bin(process_store, bin)) << index(bin);
    for (void* object : seen) {
      give_objects(bin, &object, 1, "test");
      EXPECT_FALSE(place_of(object).taken());
    }
    EXPECT_TRUE(check_bin(process_store, bin)) << index(bin);
  }
}

TEST(Bin, ObjectsOfOneTakeAscend) {
  void* objects[64];
  ASSERT_EQ(take_objects(process_store, bin64, objects, 64), 64u);
  EXPECT_TRUE(std::is_sorted(objects, objects + 64));
  for (unsigned i = 1; i < 64; ++i) EXPECT_EQ(static_cast<char*>(objects[i]) - static_cast<char*>(objects[i - 1]), 64);
  give_objects(bin64, objects, 64, "test");
}

TEST(Bin, TheFullestFolioWithRoomIsTakenFromAndOfEqualsTheLowest) {
  Taken taken(bin64);
  taken.take(6 * 64);
  char* const base = static_cast<char*>(taken.at(0));
  const auto object = [&](unsigned folio, unsigned i) { return static_cast<void*>(base + (folio * 64 + i) * 64); };
  for (unsigned i = 0; i < 6 * 64; ++i) ASSERT_EQ(taken.at(i), object(i / 64, i % 64)) << "lowest first";
  // From above, so that the order of giving is not that of taking.
  taken.give(5 * 64 + 10, 5 * 64 + 12);  // nearly full
  taken.give(4 * 64, 5 * 64);            // empty
  taken.give(3 * 64 + 5, 3 * 64 + 45);   // partly
  taken.give(2 * 64 + 1);                // nearly full
  taken.give(1 * 64, 1 * 64 + 50);       // partly
  EXPECT_TRUE(check_bin(process_store, bin64));
  const std::vector<void*> expected = {object(2, 1), object(5, 10), object(5, 11)};
  for (void* next : expected) {
    taken.take(1);
    EXPECT_EQ(taken.last(), next);
  }
  // Then the partly full ones; of these the lowest, however full, until it is nearly full and so before the other.
  for (unsigned i = 0; i < 50; ++i) {
    taken.take(1);
    EXPECT_EQ(taken.last(), object(1, i));
  }
  for (unsigned i = 5; i < 45; ++i) {
    taken.take(1);
    EXPECT_EQ(taken.last(), object(3, i));
  }
  taken.take(1);
  EXPECT_EQ(taken.last(), object(4, 0)) << "an empty one last";
}

TEST(Bin, LowerChunksBeforeHigherOnes) {
  const BinId bin = bin_of(32 * kKiB);
  const unsigned per_chunk = info_of(bin).objects;
  Taken taken(bin);
  taken.take(4 * per_chunk);
  std::vector<void*> sorted;
  for (size_t i = 0; i < taken.count(); ++i) sorted.push_back(taken.at(i));
  std::sort(sorted.begin(), sorted.end());
  taken.give_all();
  const auto window = [](void* object) { return reinterpret_cast<uintptr_t>(object) / (kWindowChunks * kChunkBytes); };
  if (window(sorted.front()) != window(sorted.back())) GTEST_SKIP() << "each window has hints of its own";
  for (unsigned i = 0; i < 4 * per_chunk; ++i) {
    taken.take(1);
    EXPECT_EQ(taken.last(), sorted[i]) << i;
  }
}

// Of objects of a page and more those that are resident come first, wherever they lie.
TEST(Bin, ResidentObjectsFirst) {
  const BinId each = bin_of(32 * 1024);
  void* objects[20];
  for (void*& object : objects) ASSERT_EQ(take_objects(process_store, each, &object, 1), 1u);
  give_objects(each, objects, 20, "test");
  purge_bins(process_store, PurgeWhich::kAll, ~size_t{0});
  for (void*& object : objects) ASSERT_EQ(take_objects(process_store, each, &object, 1), 1u);
  const PageDelta delta;
  give_objects(each, objects + 3, 1, "test");
  purge_bins(process_store, PurgeWhich::kAll, ~size_t{0});
  give_objects(each, objects + 13, 1, "test");  // the only one that is free and resident
  void* object = nullptr;
  ASSERT_EQ(take_objects(process_store, each, &object, 1), 1u);
  EXPECT_EQ(object, objects[13]) << "not the lowest";
  ASSERT_EQ(take_objects(process_store, each, &object, 1), 1u);
  EXPECT_EQ(object, objects[3]);
  EXPECT_EQ(delta.dirty(), 0);
  give_objects(each, objects, 20, "test");
  purge_bins(process_store, PurgeWhich::kAll, ~size_t{0});
}

TEST(Bin, OneTakeReachesOverFoliosAndChunks) {
  Taken taken(bin64);
  taken.take(3 * 64);
  for (unsigned folio = 3; folio-- > 0;) taken.give(folio * 64, folio * 64 + 2);
  void* objects[6];
  ASSERT_EQ(take_objects(process_store, bin64, objects, 6), 6u);
  EXPECT_TRUE(std::is_sorted(objects, objects + 6));
  give_objects(bin64, objects, 6, "test");
  // More of the largest than a chunk has left: they come from two chunks, if these are open already.
  const BinId largest = bin_of(kMediumMost);
  const unsigned per_chunk = info_of(largest).objects;
  ASSERT_LT(per_chunk, 64u);
  Taken large(largest);
  large.take(2 * per_chunk);
  large.give(per_chunk - 3, per_chunk + 3);
  ASSERT_EQ(take_objects(process_store, largest, objects, 6), 6u);
  EXPECT_NE(chunk_start(objects[0]), chunk_start(objects[5]));
  give_objects(largest, objects, 6, "test");
}

TEST(Bin, InOpenChunksOpensNone) {
  const BinId bin = bin_of(30 * kKiB);
  Taken(bin).take(1);  // so that there is one
  const size_t chunks = chunks_in_use();
  std::vector<void*> objects(1);
  while (take_objects_in_open_chunks(process_store, bin, &objects.back(), 1) == 1) objects.push_back(nullptr);
  EXPECT_EQ(objects.back(), nullptr);
  objects.pop_back();
  EXPECT_GE(objects.size(), info_of(bin).objects);
  EXPECT_EQ(chunks_in_use(), chunks);
  for (void*& object : objects) give_objects(bin, &object, 1, "test");
}

TEST(Bin, PlaceOfFindsTheObjectOfEveryAddress) {
  for (const BinId bin : all_bins()) {
    Taken taken(bin);
    taken.take(1);
    auto* const object = static_cast<char*>(taken.at(0));
    const Place place = place_of(object);
    ASSERT_NE(place.descriptor, nullptr);
    EXPECT_FALSE(place.damaged);
    const size_t bytes = static_cast<size_t>(place.slot_end - object);
    EXPECT_GE(bytes, info_of(bin).size);
    for (size_t at = 0; at < bytes; at += 1 + bytes / 50) {
      EXPECT_EQ(place_of(object + at).base, object);
      EXPECT_EQ(place_of(object + at).object, place.object);
    }
    EXPECT_NE(place_of(place.slot_end).object, place.object);
  }
  int on_stack = 0;
  EXPECT_EQ(place_of(&on_stack).descriptor, nullptr);
  EXPECT_EQ(place_of(nullptr).descriptor, nullptr);
}

// What a thread that was stopped for ever between two steps may leave behind, and worse.
void lose_all_hints(BinId bin) {
  visit_chunks(process_store, bin, [](Descriptor& d) {
    for (unsigned w = 0; w < d.hint_words(); ++w) {
      d.hint(kNearlyFull, w).store(0, order::relaxed);
      d.hint(kPartlyFull, w).store(0, order::relaxed);
      d.hint(kEmpty, w).store(~uint64_t{0}, order::relaxed);  // stored the other way round
    }
    for (unsigned fullness = kNearlyFull; fullness <= kEmpty; ++fullness) {
      d.block->summary[fullness].store(0, order::relaxed);
      for (Word& chunks : d.block->chunks[fullness]) chunks.store(0, order::relaxed);
    }
    return true;
  });
}

// ---- Where the kernel gives no more memory ----

// What would pass with nothing to show if the body never ran.
template <class Body>
void expect_passes(Body&& body) {
  const int result = in_child(body);
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

size_t take_all(BinId bin) {
  void* objects[kFolioObjects];
  size_t count = 0;
  for (unsigned got; (got = take_objects(process_store, bin, objects, kFolioObjects)) != 0; count += got) {
    for (unsigned i = 0; i < got; ++i) memset(objects[i], 1, info_of(bin).size);
  }
  return count;
}

TEST(Bin, WithoutMemoryNothingIsTakenAndNothingIsLost) {
  expect_passes([] {
    void* object = nullptr;
    const BinId bin = bin_of(48);
    if (take_objects(process_store, bin, &object, 1) != 1) return kFailed;
    if (!refuse_call(SYS_mprotect, ENOMEM)) return kCannot;
    // What is committed still serves, and what is given back to it.
    take_all(bin);
    give_objects(bin, &object, 1, "test");
    if (take_all(bin) != 1) return kFailed;
    const size_t reserved = region_bytes(), chunks = chunks_in_use(), metadata = metadata_bytes();
    for (unsigned i = 0; i < 1000; ++i) {
      if (take_objects(process_store, bin, &object, 1) != 0) return kFailed;
    }
    const bool same = region_bytes() == reserved && chunks_in_use() == chunks && metadata_bytes() == metadata;
    return same && check_bin(process_store, bin) ? kPassed : kFailed;
  });
}

// Fills all chunks that the bin has, and one more.
void fill_chunks(BinId bin) {
  const size_t chunks = chunks_in_use();
  void* object = nullptr;
  while (chunks_in_use() == chunks && take_objects(process_store, bin, &object, 1) == 1) {
  }
  for (unsigned i = 1; i < info_of(bin).objects; ++i) take_objects(process_store, bin, &object, 1);
}

// Each failing malloc once took a chunk's address space for good.
TEST(Bin, MetadataThatRunsOutCostsNoAddressSpace) {
  expect_passes([] {
    const BinId bin = bin_of(30 * kKiB);
    fill_chunks(bin);
    if (!refuse_call(SYS_mprotect, ENOMEM)) return kCannot;
    while (metadata_alloc(64) != nullptr) {
    }
    void* object = nullptr;
    if (take_objects(process_store, bin, &object, 1) != 0) return kFailed;
    const size_t reserved = region_bytes(), chunks = chunks_in_use();
    for (unsigned i = 0; i < 1000; ++i) {
      if (take_objects(process_store, bin, &object, 1) != 0) return kFailed;
    }
    return region_bytes() == reserved && chunks_in_use() == chunks ? kPassed : kFailed;
  });
}

// One for a cluster, so that it is one mapping, too: each chunk is there as a whole.
TEST(Bin, OneCallCommitsACluster) {
  EXPECT_EQ(in_child([] {
              const BinId bin = bin_of(1000);
              const char* chunk = nullptr;
              unsigned chunks = 0;
              while (chunks < 3 * kClusterChunks) {
                void* object = nullptr;
                if (take_objects(process_store, bin, &object, 1) != 1) return kFailed;
                Descriptor* const d = place_of(object).descriptor;
                if (d->chunk() == chunk) continue;
                chunk = d->chunk();
                ++chunks;
                if (!is_cluster(chunk, kClusterCommitted)) return kFailed;
                if (d->committed.load(order::relaxed) != kChunkBytes / kPageBytesLeast) return kFailed;
                const char* const cluster = cluster_start(chunk);
                if (mapping_end(cluster) < cluster + kClusterBytes) return kFailed;
              }
              return check_bin(process_store, bin) ? kPassed : kFailed;
            }),
            kPassed);
}

TEST(Bin, LostHintsAreRepairedBeforeLong) {
  const BinId bin = bin_of(13000);
  Taken taken(bin);
  taken.take(3 * info_of(bin).objects);
  void* const hidden = taken.at(info_of(bin).objects / 2);
  taken.give(info_of(bin).objects / 2);
  unsigned checks = 0;
  for (; checks < 20; ++checks) {
    lose_all_hints(bin);
    EXPECT_FALSE(check_bin(process_store, bin));
    void* object = nullptr;
    ASSERT_EQ(take_objects(process_store, bin, &object, 1), 1u) << "another chunk, if it must be";
    give_objects(bin, &object, 1, "test");
    if (object == hidden) break;
  }
  EXPECT_LT(checks, 20u);
  visit_chunks(process_store, bin, [](Descriptor& d) {
    repair_chunk(d);
    return true;
  });
  EXPECT_TRUE(check_bin(process_store, bin));
}

TEST(Bin, RandomTakesAndGivesKeepEveryInvariant) {
  for (const BinId bin : all_bins()) {
    std::mt19937 random(index(bin));
    std::vector<void*> held;
    const size_t most = std::max<size_t>(20, std::min<size_t>(2000, 8 * kMiB / info_of(bin).size));
    for (unsigned round = 0; round < rounds(400); ++round) {
      if (random() % 2 == 0 && held.size() < most) {
        void* objects[64];
        const unsigned got = take_objects(process_store, bin, objects, 1 + random() % 64);
        held.insert(held.end(), objects, objects + got);
      } else if (!held.empty()) {
        void* objects[62];
        const unsigned n = 1 + random() % static_cast<unsigned>(std::min<size_t>(62, held.size()));
        for (unsigned i = 0; i < n; ++i) {
          std::swap(held[random() % held.size()], held.back());
          objects[i] = held.back();
          held.pop_back();
        }
        give_objects(bin, objects, n, "test");
      }
      if (round % 50 == 0) ASSERT_TRUE(check_bin(process_store, bin)) << "bin " << index(bin) << " round " << round;
    }
    std::set<void*> distinct(held.begin(), held.end());
    ASSERT_EQ(distinct.size(), held.size());
    uint64_t taken_bits = 0;
    visit_chunks(process_store, bin, [&](Descriptor& d) {
      for (unsigned folio = 0; folio < d.info().folios; ++folio) {
        taken_bits += popcount(d.occupancy(folio).load(order::relaxed));
      }
      return true;
    });
    EXPECT_EQ(taken_bits, held.size()) << "bin " << index(bin);
    for (void* object : held) give_objects(bin, &object, 1, "test");
    ASSERT_TRUE(check_bin(process_store, bin));
  }
}

TEST(Bin, ThreadsNeverShareAnObject) {
  constexpr unsigned kThreads = 4;
  for (const BinId bin : {bin_of(8), bin64, bin_of(1000), bin_of(5000), bin_of(30 * kKiB)}) {
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
      threads.emplace_back([bin, t] {
        std::minstd_rand random(t + 1);
        std::vector<void*> held;
        for (unsigned round = 0; round < rounds(3000); ++round) {
          if (random() % 2 == 0 && held.size() < 48) {
            void* objects[16];
            const unsigned got = take_objects(process_store, bin, objects, 1 + random() % 16);
            for (unsigned i = 0; i < got; ++i) {
              *static_cast<uint64_t*>(objects[i]) = t;
              held.push_back(objects[i]);
            }
          } else if (!held.empty()) {
            const size_t n = 1 + random() % held.size();
            if (random() % 4 == 0) std::reverse(held.begin(), held.end());
            for (size_t i = held.size() - n; i < held.size(); ++i) ASSERT_EQ(*static_cast<uint64_t*>(held[i]), t);
            give_objects(bin, &held[held.size() - n], static_cast<unsigned>(n), "test");
            held.resize(held.size() - n);
          }
        }
        for (void* object : held) give_objects(bin, &object, 1, "test");
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(check_bin(process_store, bin)) << index(bin);
    visit_chunks(process_store, bin, [](Descriptor& d) {
      for (unsigned folio = 0; folio < d.info().folios; ++folio) {
        EXPECT_EQ(d.occupancy(folio).load(order::relaxed), 0u);
      }
      return true;
    });
  }
}

// check_bin must see what is wrong, or the tests that call it prove nothing.
class CheckBin : public ::testing::Test {
 protected:
  void expect_found(Word& word, uint64_t changed, const char* what) {
    const uint64_t before = word.exchange(changed, order::relaxed);
    ASSERT_NE(before, changed) << what << ": nothing was changed";
    EXPECT_FALSE(check_bin(process_store, bin_)) << what;
    word.store(before, order::relaxed);
    ASSERT_TRUE(check_bin(process_store, bin_)) << what;
  }
  const BinId bin_ = bin_of(384);  // several folios in a chunk, and its last one has fewer objects
};

TEST_F(CheckBin, SeesEachInvariantBroken) {
  Taken taken(bin_);
  taken.take(3 * 64);
  taken.give(64 + 2, 64 + 40);
  taken.give(1);
  ASSERT_TRUE(check_bin(process_store, bin_));
  auto& d = *static_cast<Descriptor*>(descriptor_at(taken.at(0)));
  const unsigned slot = window_slot(d.first);
  const auto without = [](const Word& word, unsigned bit) { return word.load(order::relaxed) & ~(uint64_t{1} << bit); };
  expect_found(d.hint(kNearlyFull, 0), without(d.hint(kNearlyFull, 0), 0), "a nearly full folio's hint");
  expect_found(d.hint(kPartlyFull, 0), without(d.hint(kPartlyFull, 0), 1), "a partly full folio's hint");
  expect_found(d.hint(kEmpty, 0), d.hint(kEmpty, 0).load(order::relaxed) | uint64_t{1} << 5, "an empty folio's hint");
  for (unsigned fullness = 0; fullness < 3; ++fullness) {
    Word& chunks = d.block->chunks[fullness][slot / 64];
    expect_found(chunks, without(chunks, slot % 64), "a chunk's hint");
    Word& summary = d.block->summary[fullness];
    expect_found(summary, without(summary, slot / 64), "a summary bit");
  }
  const unsigned page = ChunkPages(d).of(0).first, free_page = ChunkPages(d).of(64 + 20).first;
  expect_found(d.resident(page / 64), without(d.resident(page / 64), page % 64), "residency of a taken object");
  expect_found(d.dirty(free_page / 64), without(d.dirty(free_page / 64), free_page % 64), "the mark of a free page");
  expect_found(d.dirty(page / 64), d.dirty(page / 64).load(order::relaxed) | uint64_t{1} << page % 64,
               "the mark of a page that is not free");
  const unsigned last = d.info().folios - 1u;
  ASSERT_NE(d.info().last_valid, ~uint64_t{0});
  expect_found(d.occupancy(last), d.info().last_valid + 1, "a bit that is no object");
  d.seal ^= 1;
  EXPECT_FALSE(check_bin(process_store, bin_)) << "the seal";
  d.seal ^= 1;
}

}  // namespace
