#include "store/purge.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "os/os.h"
#include "space/housekeeper.h"
#include "store/bin.h"
#include "store/check.h"
#include "store/occupancy.h"
#include "store/residency.h"
#include "unit/store/purge_bins.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr size_t kNoLimit = ~size_t{0};

size_t slot_bytes(const void* object) {
  return static_cast<size_t>(place_of(object).slot_end - static_cast<const char*>(object));
}

// Contents that depend on the object's address.
void fill(void* object) {
  memset(object, static_cast<int>(reinterpret_cast<uintptr_t>(object) >> 4 | 1), slot_bytes(object));
}
bool filled(const void* object) {
  const auto* bytes = static_cast<const unsigned char*>(object);
  const size_t n = slot_bytes(object);
  return bytes[0] == static_cast<unsigned char>(reinterpret_cast<uintptr_t>(object) >> 4 | 1) &&
         memcmp(bytes, bytes + 1, n - 1) == 0;
}

std::vector<void*> take_filled(BinId bin, unsigned n) {
  std::vector<void*> objects;
  while (objects.size() < n) {
    void* some[64];
    const unsigned got =
        take_objects(process_store, bin, some, std::min<unsigned>(64, n - static_cast<unsigned>(objects.size())));
    EXPECT_GE(got, 1u);
    objects.insert(objects.end(), some, some + got);
  }
  for (void* object : objects) fill(object);
  return objects;
}

void give(BinId bin, std::vector<void*>& objects) {
  for (size_t i = 0; i < objects.size(); i += 62) {
    give_objects(bin, &objects[i], static_cast<unsigned>(std::min<size_t>(62, objects.size() - i)), "test");
  }
  objects.clear();
}

// As many objects as make about three chunks, or half a chunk of the smallest.
unsigned several(BinId bin) { return std::max(20u, std::min(3 * info_of(bin).objects, rounds(20000))); }

// Of which no page is resident that no object is on. A bin of several full chunks in a large heap, maybe in an earlier
// test of the process, has huge pages, and their colour is resident too.
std::vector<BinId> bins_of_small_pages() {
  std::vector<BinId> bins;
  for (const BinId bin : all_bins()) {
    bool huge = false;
    visit_chunks(process_store, bin, [&](Descriptor& d) {
      const Backing backing = d.backing();
      huge = backing == Backing::kHugePurged || backing == Backing::kHuge;
      return !huge;
    });
    if (!huge) bins.push_back(bin);
  }
  return bins;
}

// The page accounts by counting every bit of every chunk.
struct Recount {
  int64_t resident = 0, dirty = 0;
  int64_t outside = 0;  // of resident: no objects can be there; from a huge page, or from whom the chunk was inherited
  Recount() {
    for (const BinId bin : all_bins()) {
      visit_chunks(process_store, bin, [&](Descriptor& d) {
        add(d);
        return true;
      });
    }
  }
  void add(Descriptor& d) {
    const auto page = static_cast<int64_t>(os::page_bytes());
    for (unsigned i = 0; i < ChunkPages(d).count(); ++i) {
      if ((d.resident(i / 64).load(order::relaxed) >> i % 64 & 1) == 0) continue;
      const Pages in_use = ChunkPages(d).in_use();
      const bool inside = i >= in_use.first && i < in_use.end;
      resident += page;
      if (!inside) outside += page;
      if (inside && is_free(d, i)) dirty += page;
    }
  }
};

void expect_exact_accounts() {
  const Recount recount;
  EXPECT_EQ(page_counts.resident.get(), recount.resident);
  EXPECT_EQ(page_counts.dirty.get(), recount.dirty);
}

// Starts and ends with everything free and given back. By one system call for each run of pages, or, as where there is
// a housekeeper, for many.
class Purge : public ::testing::TestWithParam<bool> {
 protected:
  Purge() {
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    if (GetParam()) EXPECT_TRUE(housekeeper_enter());
  }
  ~Purge() override {
    if (GetParam()) housekeeper_forget();
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(delta_.resident(), 0);
    EXPECT_EQ(delta_.dirty(), 0);
    expect_exact_accounts();
    for (const BinId bin : all_bins()) EXPECT_TRUE(check_bin(process_store, bin)) << index(bin);
  }
  PageDelta delta_;
};

INSTANTIATE_TEST_SUITE_P(, Purge, ::testing::Bool(),
                         [](const auto& mode) { return std::string(mode.param ? "InBatches" : "RunByRun"); });

TEST_P(Purge, AccountsFollowABinThroughItsLife) {
  for (const BinId bin : bins_of_small_pages()) {
    std::vector<void*> objects = take_filled(bin, several(bin));
    EXPECT_GE(delta_.resident(), static_cast<int64_t>(objects.size() * info_of(bin).size)) << "bin " << index(bin);
    EXPECT_LT(delta_.dirty(), static_cast<int64_t>(128 * kKiB))
        << "pages ahead, the rest of a unit; bin " << index(bin);
    expect_exact_accounts();
    give(bin, objects);
    EXPECT_EQ(delta_.dirty(), delta_.resident()) << "all of it is free; bin " << index(bin);
    expect_exact_accounts();
    const auto dirty = static_cast<size_t>(delta_.dirty());
    const uint64_t before = delta_.purged();
    const size_t purged = purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(purged, delta_.purged() - before);
    // Runs also reach over what was never touched; the accounts hold a whole last folio where a chunk has part of one.
    EXPECT_LE(purged, dirty + 2 * kChunkBytes) << "bin " << index(bin);
    EXPECT_GE(purged + kChunkBytes / 4, dirty) << "bin " << index(bin);
    EXPECT_EQ(delta_.resident(), 0) << "bin " << index(bin);
    EXPECT_EQ(delta_.dirty(), 0) << "bin " << index(bin);
    EXPECT_EQ(purge_bins(process_store, PurgeWhich::kAll, kNoLimit), 0u) << "nothing twice; bin " << index(bin);
  }
}

TEST_P(Purge, PurgedObjectsReadAsZero) {
  if (os::page_bytes() != 4096) GTEST_SKIP() << "folios of larger pages share them";
  for (const BinId bin : all_bins()) {
    std::vector<void*> objects = take_filled(bin, several(bin));
    std::vector<void*> freed = objects;
    give(bin, objects);
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    for (void* object : freed) {
      // The last page of a chunk's last object may be one that it shares with the unused end.
      if (place_of(object).object + 1 == info_of(bin).objects) continue;
      ASSERT_TRUE(all_zero(object, slot_bytes(object))) << "bin " << index(bin);
    }
  }
}

TEST_P(Purge, WhatIsTakenKeepsItsContents) {
  for (const BinId bin : all_bins()) {
    for (const unsigned every : {2u, 3u, 50u, 400u}) {
      std::vector<void*> freed = take_filled(bin, several(bin)), kept;
      for (size_t i = freed.size(); i-- > 0;) {
        if (i % every != 0) continue;
        kept.push_back(freed[i]);
        freed[i] = freed.back();
        freed.pop_back();
      }
      give(bin, freed);
      purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
      for (void* object : kept) ASSERT_TRUE(filled(object)) << "bin " << index(bin) << ", every " << every;
      expect_exact_accounts();
      give(bin, kept);
    }
  }
}

TEST_P(Purge, OnlyWhatHasAgedGoesOnATick) {
  for (const BinId bin : bins_of_small_pages()) {
    std::vector<void*> first = take_filled(bin, several(bin)), second;
    give(bin, first);
    EXPECT_EQ(purge_bins(process_store, PurgeWhich::kAged, kNoLimit), 0u) << "bin " << index(bin);
    age_bins(process_store);
    EXPECT_EQ(delta_.dirty(), delta_.resident());
    EXPECT_GT(delta_.dirty(), 0) << "marking purges nothing";
    EXPECT_GT(purge_bins(process_store, PurgeWhich::kAged, kNoLimit), 0u) << "bin " << index(bin);
    EXPECT_EQ(delta_.dirty(), 0) << "bin " << index(bin);
  }
}

TEST_P(Purge, TakingClearsTheMark) {
  for (const BinId bin : all_bins()) {
    // All of one page at least, so that it is the same pages again.
    const auto n = static_cast<unsigned>(os::page_bytes() / info_of(bin).size + 1);
    std::vector<void*> objects = take_filled(bin, n);
    give(bin, objects);
    age_bins(process_store);
    objects = take_filled(bin, n);
    const std::vector<void*> used = objects;
    give(bin, objects);
    purge_bins(process_store, PurgeWhich::kAged, kNoLimit);  // of what came ahead at most
    const bool all = std::all_of(used.begin(), used.end(), [](const void* object) { return filled(object); });
    EXPECT_TRUE(all) << "used since it was marked; bin " << index(bin);
    age_bins(process_store);
    EXPECT_GT(purge_bins(process_store, PurgeWhich::kAged, kNoLimit), 0u) << "bin " << index(bin);
  }
}

TEST_P(Purge, GoesInStepsOfAboutWhatIsAsked) {
  std::vector<BinId> some = {bin_of(16),    bin_of(200),       bin_of(3000),
                             bin_of(10000), bin_of(20 * kKiB), bin_of(32 * kKiB)};
  int64_t sum = 0;
  for (const BinId bin : some) {
    std::vector<void*> objects = take_filled(bin, 3 * info_of(bin).objects);
    give(bin, objects);
  }
  sum = delta_.dirty();
  unsigned steps = 0;
  size_t purged = 0, step = 0;
  while ((step = purge_bins(process_store, PurgeWhich::kAll, kMiB)) != 0) {
    EXPECT_LE(step, kMiB + kPurgeRunBytes + kClusterBytes) << "a run or a folio more than asked";
    purged += step;
    ++steps;
    expect_exact_accounts();
  }
  EXPECT_GE(steps, static_cast<unsigned>(sum / static_cast<int64_t>(4 * kMiB)));
  EXPECT_EQ(delta_.dirty(), 0);
  EXPECT_GE(purged + 18 * 64 * kKiB, static_cast<size_t>(sum));
}

// Chunks of the bins that have aged marks.
unsigned aged_chunks(const std::vector<BinId>& some) {
  unsigned n = 0;
  for (const BinId bin : some) {
    visit_chunks(process_store, bin, [&](Descriptor& d) {
      uint64_t any = 0;
      for (unsigned w = 0; w < kPageWords; ++w) any |= d.aged(w).load(order::relaxed);
      n += any != 0;
      return true;
    });
  }
  return n;
}

TEST_P(Purge, ARoundOfStepsComesByEachChunkOnce) {
  const auto floor = options.dirty_floor;
  options.dirty_floor = 1024;  // no bin inherits what another one has left
  const std::vector<BinId> some = {bin_of(200), bin_of(3000), bin_of(32 * kKiB)};
  constexpr unsigned kChunksOfEach = 9;
  for (const BinId bin : some) {
    std::vector<void*> objects = take_filled(bin, kChunksOfEach * info_of(bin).objects);
    give(bin, objects);
  }
  // A round in steps of any length, which purges nothing, since nothing has aged, and ages all.
  ChunkRound round;
  PurgeStep step{PurgeWhich::kAged, kNoLimit, kChunkShift, 4, false};
  bool complete = false;
  for (unsigned before = 0; !complete;) {
    const PurgeStepDone done = purge_bins_step(process_store, round, step);
    EXPECT_EQ(done.purged, 0u);
    EXPECT_TRUE(done.worthwhile || done.complete);
    complete = done.complete;
    const unsigned now = aged_chunks(some);
    EXPECT_LE(now, before + step.most_chunks);
    EXPECT_TRUE(complete || now == before + step.most_chunks) << "each is another one";
    before = now;
  }
  EXPECT_GE(aged_chunks(some), kChunksOfEach * some.size());
  // The second visit takes what has aged, in steps of bytes.
  step = {PurgeWhich::kAged, kChunkBytes / 2, kChunkShift, ~0u, false};
  unsigned steps = 0;
  for (complete = false; !complete; ++steps) {
    const PurgeStepDone done = purge_bins_step(process_store, round, step);
    EXPECT_LE(done.purged, 2 * kChunkBytes);
    complete = done.complete;
  }
  EXPECT_GE(steps, kChunksOfEach * some.size() / 2);
  EXPECT_EQ(delta_.dirty(), 0);
  options.dirty_floor = floor;
}

TEST_P(Purge, AStepThatGoesAroundEndsWhereItCameIn) {
  const BinId bin = bin_of(3000), other = bin_of(200);
  std::vector<void*> objects = take_filled(bin, 8 * info_of(bin).objects), others = take_filled(other, 8000);
  give(bin, objects);
  give(other, others);
  ChunkRound round;
  PurgeStep step{PurgeWhich::kAged, kNoLimit, kChunkShift, 5, false};
  EXPECT_EQ(purge_bins_step(process_store, round, step).purged, 0u);
  const unsigned all = aged_chunks(all_bins());
  EXPECT_EQ(all, 5u);
  // Goes by the others, and by those five: once, or what it ages there would go in the same step.
  step = {PurgeWhich::kAged, kNoLimit, kChunkShift, ~0u, true};
  const int64_t dirty = delta_.dirty();
  EXPECT_GT(purge_bins_step(process_store, round, step).purged, 0u) << "the five";
  EXPECT_LT(delta_.dirty(), dirty);
  EXPECT_GE(delta_.dirty(), 2 * static_cast<int64_t>(kChunkBytes)) << "the others";
  purge_bins_step(process_store, round, step);
  EXPECT_EQ(delta_.dirty(), 0);
}

TEST_P(Purge, NeighboursGoInOneCall) {
  for (const BinId bin : {bin_of(8), bin_of(64), bin_of(1000), bin_of(3000)}) {
    std::vector<void*> objects = take_filled(bin, info_of(bin).objects);
    give(bin, objects);
    const uint64_t before = delta_.calls();
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_LE(delta_.calls() - before, kChunkBytes / kPurgeRunBytes + 2) << "bin " << index(bin);
  }
}

// A process that has locked its memory would else make as many calls in vain as slow calls.
TEST_P(Purge, WhatTheKernelRefusedIsTriedAgainWhenSomethingChangedOrAllIsToGo) {
  for (const BinId bin : {bin_of(64), bin_of(3000), bin_of(5000), bin_of(30 * kKiB)}) {
    std::vector<void*> objects = take_filled(bin, several(bin));
    char* const locked = static_cast<char*>(objects[0]);
    if (!lock_page(locked)) {
      give(bin, objects);
      GTEST_SKIP() << "no memory may be locked here";
    }
    give(bin, objects);
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_GT(delta_.dirty(), 0) << "what is locked stays";
    EXPECT_EQ(delta_.dirty(), delta_.resident());
    expect_exact_accounts();
    EXPECT_TRUE(check_bin(process_store, bin));
    const PageDelta refused;
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(refused.calls(), 0u) << "not again and again";
    void* again = nullptr;
    ASSERT_EQ(take_objects(process_store, bin, &again, 1), 1u);
    give_objects(bin, &again, 1, "test");
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_GT(refused.calls(), 0u) << "something of it was freed";
    EXPECT_GT(delta_.dirty(), 0);
    unlock_page(locked);
    retry_refused(process_store);
    purge_bins(process_store, PurgeWhich::kAll, kNoLimit);
    EXPECT_EQ(delta_.dirty(), 0) << "bin " << index(bin);
  }
}

TEST_P(Purge, MemoryReallyGoes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow is resident too";
  const BinId bin = bin_of(64);
  std::vector<void*> objects = take_filled(bin, static_cast<unsigned>(64 * kMiB / 64));
  const size_t before = os::resident_bytes();
  give(bin, objects);
  EXPECT_GE(purge_bins(process_store, PurgeWhich::kAll, kNoLimit), 64 * kMiB);
  EXPECT_LT(os::resident_bytes(), before - 60 * kMiB);
}

TEST_P(Purge, RandomUseKeepsTheAccountsExact) {
  std::mt19937 random(6);
  std::vector<std::vector<void*>> held(kBins);
  for (unsigned round = 0; round < rounds(4000); ++round) {
    const BinId bin = bin_id(1 + random() % (kBins - 1));
    std::vector<void*>& mine = held[index(bin)];
    const unsigned what = random() % 100;
    if (what < 45 && mine.size() * info_of(bin).size < 4 * kMiB) {
      std::vector<void*> more = take_filled(bin, 1 + random() % 200 % (1 + 4 * kMiB / info_of(bin).size / 8));
      mine.insert(mine.end(), more.begin(), more.end());
    } else if (what < 90) {
      std::vector<void*> some;
      for (size_t n = random() % (mine.size() + 1); n > 0; --n) {
        std::swap(mine[random() % mine.size()], mine.back());
        ASSERT_TRUE(filled(mine.back())) << "bin " << index(bin);
        some.push_back(mine.back());
        mine.pop_back();
      }
      give(bin, some);
    } else if (what < 95) {
      purge_bins(process_store, PurgeWhich::kAged, random() % 2 == 0 ? kNoLimit : 64 * kKiB);
    } else if (what < 97) {
      purge_bins(process_store, PurgeWhich::kAll, random() % 2 == 0 ? kNoLimit : 64 * kKiB);
    } else {
      age_bins(process_store);
    }
    if (round % 100 == 0) expect_exact_accounts();
  }
  for (const BinId bin : all_bins()) {
    ASSERT_TRUE(check_bin(process_store, bin)) << index(bin);
    give(bin, held[index(bin)]);
  }
  EXPECT_EQ(delta_.dirty() + Recount().outside, delta_.resident());
}

TEST_P(Purge, ThreadsUseWhatAnotherPurges) {
  const BinId bins_used[] = {bin_of(16), bin_of(500), bin_of(3000), bin_of(5000), bin_of(20 * kKiB), bin_of(32 * kKiB)};
  std::atomic<bool> stop{false};
  std::thread purger([&] {
    for (unsigned i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      age_bins(process_store);
      purge_bins(process_store, i % 2 == 0 ? PurgeWhich::kAll : PurgeWhich::kAged, i % 3 == 0 ? 256 * kKiB : kNoLimit);
    }
  });
  std::vector<std::thread> users;
  for (unsigned t = 0; t < 3; ++t) {
    users.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      std::vector<void*> held[std::size(bins_used)];
      for (unsigned round = 0; round < rounds(4000); ++round) {
        const size_t i = random() % std::size(bins_used);
        if (held[i].size() < 200 && random() % 2 == 0) {
          for (void* object : take_filled(bins_used[i], 1 + random() % (i < 3 ? 100 : 3))) held[i].push_back(object);
        } else {
          for (void* object : held[i]) ASSERT_TRUE(filled(object)) << i;
          give(bins_used[i], held[i]);
        }
      }
      for (size_t i = 0; i < std::size(bins_used); ++i) give(bins_used[i], held[i]);
    });
  }
  for (std::thread& user : users) user.join();
  stop = true;
  purger.join();
  EXPECT_EQ(delta_.dirty(), delta_.resident());
  expect_exact_accounts();
}

}  // namespace
