#include "store/give.h"

#include <algorithm>
#include <random>
#include <vector>

#include "store/bin.h"
#include "store/check.h"
#include "store/occupancy.h"
#include "store/residency.h"
#include "unit/cache/magazines.h"
#include "unit/stderr_capture.h"
#include "unit/store/take_give.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

const BinId bin64 = bin_of(64);

TEST(Give, ObjectsOfManyFoliosAndChunksInOneCall) {
  for (const BinId bin : {bin_of(8), bin64, bin_of(3000), bin_of(30 * kKiB)}) {
    std::vector<void*> objects;
    while (objects.size() < 62 * 4) {
      void* some[62];
      const unsigned got = take_objects(process_store, bin, some, 62);
      ASSERT_GE(got, 1u);
      objects.insert(objects.end(), some, some + got);
    }
    std::shuffle(objects.begin(), objects.end(), std::mt19937(5));
    for (size_t i = 0; i < objects.size(); i += 62) {
      give_objects(bin, &objects[i], static_cast<unsigned>(std::min<size_t>(62, objects.size() - i)), "test");
    }
    for (void* object : objects) EXPECT_FALSE(place_of(object).taken());
    EXPECT_TRUE(check_bin(process_store, bin));
  }
}

// Of a damaged magazine: no descriptor is taken for theirs.
TEST(Give, AddressesBelowTheFirstChunkAreReported) {
  const SavedOptions saved;
  options.errors = kErrorsWarn;
  void* object = nullptr;
  ASSERT_EQ(take_objects(process_store, bin64, &object, 1), 1u);
  void* const list[] = {nullptr, reinterpret_cast<void*>(64), object, reinterpret_cast<void*>(kChunkBytes - 64)};
  StderrCapture capture;
  give_objects(bin64, list, 4, "FUNC");
  const std::string reported = capture.stop();
  EXPECT_EQ(std::count(reported.begin(), reported.end(), '\n'), 3) << reported;
  EXPECT_FALSE(place_of(object).taken());
}

// Nor for addresses beyond all memory, whose chunks' numbers have the low half of others', or of none.
TEST(Give, AddressesBeyondMemoryAreReported) {
  const SavedOptions saved;
  options.errors = kErrorsWarn;
  for (const bool behind : {false, true}) {
    void* object = nullptr;
    ASSERT_EQ(take_objects(process_store, bin64, &object, 1), 1u);
    const auto beyond = reinterpret_cast<uintptr_t>(object) | uintptr_t{1} << (kChunkShift + 32);
    const uintptr_t none = uintptr_t{0xffffffff} << kChunkShift, last = ~uintptr_t{0} << kChunkShift;
    std::vector<void*> list;
    for (const uintptr_t address : {none, last, beyond}) list.push_back(reinterpret_cast<void*>(address));
    list.insert(behind ? list.begin() : list.end(), object);
    StderrCapture capture;
    give_objects(bin64, list.data(), 4, "FUNC");
    const std::string reported = capture.stop();
    EXPECT_EQ(std::count(reported.begin(), reported.end(), '\n'), 3) << reported;
    EXPECT_FALSE(place_of(object).taken());
  }
}

TEST(Give, RowsOfNeighboursUpAndDown) {
  for (const BinId bin : {bin_of(8), bin64, bin_of(100), bin_of(5000)}) {
    const uint64_t before = taken_objects(bin);
    std::vector<void*> objects(2 * info_of(bin).objects + 200);  // over the ends of folios and chunks
    for (size_t at = 0; at < objects.size();) {
      at += take_objects(process_store, bin, &objects[at],
                         static_cast<unsigned>(std::min<size_t>(64, objects.size() - at)));
    }
    std::sort(objects.begin(), objects.end());
    std::mt19937 random(5);
    uint64_t left = before + objects.size();
    for (size_t at = 0; at < objects.size();) {
      const size_t n = std::min<size_t>(1 + random() % 64, objects.size() - at);
      if (random() % 2 == 0) std::reverse(&objects[at], &objects[at] + n);
      if (random() % 4 == 0) std::swap(objects[at], objects[at + n / 2]);
      give_objects(bin, &objects[at], static_cast<unsigned>(n), "test");
      at += n;
      left -= n;
      ASSERT_EQ(taken_objects(bin), left) << "bin " << index(bin);
    }
    EXPECT_TRUE(check_bin(process_store, bin));
  }
}

// Each object once, whatever neighbours come before and behind it, in rising and falling order.
TEST(Give, ANeighbourThatIsThereAlreadyIsReported) {
  const SavedOptions saved;
  options.errors = kErrorsWarn;
  for (const BinId bin : {bin64, bin_of(1000)}) {
    for (unsigned row = 2; row <= 64; row += 3) {
      for (unsigned twice = 0; twice < row; ++twice) {
        for (const bool falling : {false, true}) {
          std::vector<void*> objects(130);
          for (size_t at = 0; at < objects.size();) {
            at += take_objects(process_store, bin, &objects[at], static_cast<unsigned>(objects.size() - at));
          }
          std::sort(objects.begin(), objects.end());
          const uint64_t taken = taken_objects(bin);
          std::vector<void*> list = {objects[twice], objects[129]};
          list.insert(list.end(), objects.begin(), objects.begin() + row);
          if (falling) std::reverse(list.begin() + 2, list.end());
          StderrCapture capture;
          give_objects(bin, list.data(), static_cast<unsigned>(list.size()), "FUNC");
          const std::string reported = capture.stop();
          ASSERT_NE(reported.find("double free"), std::string::npos) << twice << " of " << row;
          ASSERT_EQ(std::count(reported.begin(), reported.end(), '\n'), 1) << reported;
          ASSERT_EQ(taken_objects(bin), taken - row - 1);
          give_objects(bin, &objects[row], 129 - row, "test");
        }
      }
    }
    EXPECT_TRUE(check_bin(process_store, bin));
  }
}

// Objects of several magazines at once, of few folios or of many, in order or not: what goes back is what was given,
// and the account of pages is exact.
TEST(Give, ListsGoBackTogether) {
  std::mt19937 random(7);
  for (const BinId bin : {bin_of(16), bin64, bin_of(100), bin_of(400), bin_of(3000)}) {
    std::vector<void*> objects(6000);
    for (void*& object : objects) ASSERT_EQ(take_objects(process_store, bin, &object, 1), 1u);
    for (const bool shuffled : {false, true}) {
      if (shuffled) std::shuffle(objects.begin(), objects.end(), random);
      for (unsigned lists = 1; lists <= kGiveListsMost; ++lists) {
        ObjectList each[kGiveListsMost];
        std::vector<void*> given;
        for (unsigned i = 0; i < lists; ++i) {
          const unsigned n = 1 + static_cast<unsigned>(random() % kMagazineObjects);
          given.insert(given.end(), objects.end() - n, objects.end());
          objects.resize(objects.size() - n);
        }
        size_t at = 0;
        for (unsigned i = 0; i < lists; ++i) {
          const size_t n = i + 1 == lists ? given.size() - at : std::min<size_t>(given.size() - at, 1 + random() % 40);
          each[i] = {given.data() + at, static_cast<unsigned>(std::min<size_t>(n, kMagazineObjects))};
          at += each[i].count;
        }
        give_lists(bin, each, lists, "test");
        for (size_t i = 0; i < given.size(); ++i) ASSERT_EQ(place_of(given[i]).taken(), i >= at) << i;
        objects.insert(objects.end(), given.begin() + static_cast<ptrdiff_t>(at), given.end());
        for (void* object : objects) ASSERT_TRUE(place_of(object).taken());
        ASSERT_TRUE(check_bin(process_store, bin));
      }
    }
    for (void*& object : objects) give_objects(bin, &object, 1, "test");
  }
}

// Objects that are freed one by one in order leave a run that soon is longer than a page; what it holds of the last
// object's page tells that the page is still in use.
TEST(Give, OfFreesInOrderTheGlanceTellsAllButOneAPage) {
  for (const BinId bin : all_bins()) {
    const BinInfo& info = info_of(bin);
    if (info.size > os::page_bytes() || info.folios < 3) continue;
    std::vector<uint64_t> zeros(Descriptor::bytes_for(bin) / sizeof(uint64_t));
    Descriptor& d = *new (zeros.data()) Descriptor{};
    d.bin = bin;
    d.first = first_object(reinterpret_cast<char*>(37 * kChunkBytes), info);
    const unsigned folio = 1;
    for (unsigned f = 0; f < info.folios; ++f) d.occupancy(f).store(d.valid(f), order::relaxed);
    const FreeRun run(info);
    unsigned not_told = 0;
    for (unsigned at = 0; at < kFolioObjects; ++at) {
      const uint64_t given = uint64_t{1} << at;
      const uint64_t left = d.occupancy(folio).fetch_and(~given, order::relaxed) & ~given;
      not_told += !run.none(d, info, folio, given, left);
    }
    const Pages pages = ChunkPages(d).of({folio * kFolioObjects, (folio + 1) * kFolioObjects});
    EXPECT_LE(not_told, pages.count()) << info.size;
  }
}

}  // namespace
