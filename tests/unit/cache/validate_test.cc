#include "cache/validate.h"

#include <set>

#include "unit/cache/magazines.h"
#include "unit/stderr_capture.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// With vectors of 16 bytes, and of 32 where the processor has them.
class Validate : public ::testing::TestWithParam<int> {
 protected:
  Validate() {
    options.errors = kErrorsWarn;
    wide_vectors.set(arch::has_wide_vectors() ? GetParam() : kNarrow);
  }
  ~Validate() override {
    for (const BinId bin : all_bins()) EXPECT_EQ(taken_objects(bin), 0u) << "bin " << index(bin);
  }
  static std::string validated(BinId bin, Magazine* magazine, bool thorough = false) {
    StderrCapture capture;
    validate(bin, magazine, thorough, "FUNC");
    return capture.stop();
  }
  static std::vector<void*> sorted(Magazine* magazine) {
    std::vector<void*> objects = objects_of(magazine);
    std::sort(objects.begin(), objects.end());
    return objects;
  }

 private:
  SavedOptions saved_;
};

INSTANTIATE_TEST_SUITE_P(, Validate, ::testing::Values(kNarrow, kWide),
                         [](const auto& vectors) { return std::string(vectors.param == kWide ? "Wide" : "Narrow"); });

TEST_P(Validate, WhatIsRightStaysAsItIs) {
  for (const BinId bin : all_bins()) {
    for (unsigned n = 0; n <= info_of(bin).magazine_most; ++n) {
      Magazine* const magazine = magazine_of(bin, n);
      const std::vector<void*> before = objects_of(magazine);
      EXPECT_EQ(validated(bin, magazine, n % 2 == 0), "") << "bin " << index(bin);
      EXPECT_EQ(objects_of(magazine), before);
      bundle_drain(bin, magazine, "test");
    }
  }
}

TEST_P(Validate, AnObjectAgainAfterOneOtherIsTakenOut) {
  for (const BinId bin : {bin_of(8), bin_of(64), bin_of(1000), bin_of(8000)}) {
    const unsigned most = info_of(bin).magazine_most;
    for (unsigned i = 0; i + 2 < most; ++i) {
      Magazine* const magazine = magazine_of(bin, most);
      const std::vector<void*> good = sorted(magazine);
      // In the place of another, which the test keeps.
      void* const kept = magazine->top()[i + 2];
      void* const twice = magazine->top()[i];
      magazine->top()[i + 2] = twice;
      const std::string reported = validated(bin, magazine);
      EXPECT_NE(reported.find("double free of a " + std::to_string(info_of(bin).size) + "-byte object"),
                std::string::npos)
          << i;
      EXPECT_EQ(std::count(reported.begin(), reported.end(), '\n'), 1) << reported;
      std::vector<void*> expected = good;
      expected.erase(std::find(expected.begin(), expected.end(), kept));
      EXPECT_EQ(sorted(magazine), expected) << "once each, place " << i << " of bin " << index(bin);
      bundle_drain(bin, magazine, "test");
      give_objects(bin, &kept, 1, "test");
    }
  }
}

TEST_P(Validate, EachAddressThatIsNoObjectsStartIsTakenOut) {
  for (const BinId bin : all_bins()) {
    const unsigned most = info_of(bin).magazine_most;
    const auto size = static_cast<ptrdiff_t>(info_of(bin).size);
    for (unsigned i = 0; i < most; i += most < 8 ? 1 : 7) {
      for (const ptrdiff_t off : {ptrdiff_t{1}, size / 2 + 1, size / 2, size - 8, size - 1, size / 4}) {
        if (off == 0) continue;
        Magazine* const magazine = magazine_of(bin, most);
        std::vector<void*> expected = sorted(magazine);
        void* const object = magazine->top()[i];
        magazine->top()[i] = static_cast<char*>(object) + off;
        const std::string reported = validated(bin, magazine);
        EXPECT_NE(reported.find("not the start of an object: inside a"), std::string::npos) << off << " at " << i;
        EXPECT_EQ(std::count(reported.begin(), reported.end(), '\n'), 1) << reported;
        expected.erase(std::find(expected.begin(), expected.end(), object));
        EXPECT_EQ(sorted(magazine), expected) << "bin " << index(bin);
        bundle_drain(bin, magazine, "test");
        give_objects(bin, &object, 1, "test");
      }
    }
  }
}

// The chunk table has one entry for an object's address and those a multiple of 16 TiB away, or with tags.
TEST_P(Validate, WhatIsFoldedOntoAnObjectIsForeignAndTakenOut) {
  for (const BinId bin : all_bins()) {
    const unsigned most = info_of(bin).magazine_most;
    for (const unsigned bit : {kTableBits, kTableBits + 1, 56u, 63u}) {
      for (const unsigned i : {0u, most / 2, most - 1}) {
        Magazine* const magazine = magazine_of(bin, most);
        std::vector<void*> expected = sorted(magazine);
        void* const object = magazine->top()[i];
        const uintptr_t folded = reinterpret_cast<uintptr_t>(object) ^ uintptr_t { 1 } << bit;
        ASSERT_EQ(chunk_code_unchecked(reinterpret_cast<void*>(folded)), chunk_code_unchecked(object));
        magazine->top()[i] = reinterpret_cast<void*>(folded);
        const std::string reported = validated(bin, magazine);
        EXPECT_NE(reported.find("not an address of Folio's"), std::string::npos) << bit << ": " << reported;
        EXPECT_EQ(std::count(reported.begin(), reported.end(), '\n'), 1) << reported;
        expected.erase(std::find(expected.begin(), expected.end(), object));
        EXPECT_EQ(sorted(magazine), expected) << "bin " << index(bin);
        bundle_drain(bin, magazine, "test");
        give_objects(bin, &object, 1, "test");
      }
    }
  }
}

// Of every address of a chunk, at distances that no size divides: what starts no object, and nothing else, is wrong.
TEST_P(Validate, AChunksAddressesAreToldApartExactly) {
  for (const BinId bin : all_bins()) {
    const unsigned n = info_of(bin).magazine_most;
    Magazine* const magazine = magazine_of(bin, n);
    const std::vector<void*> objects = objects_of(magazine);
    const auto* d = static_cast<Descriptor*>(descriptor_at(objects[0]));
    char* const chunk = chunk_start(objects[0]);
    char* const behind = d->first + size_t{info_of(bin).objects} * info_of(bin).size;
    const auto check = [&](char* address) {
      if (chunk_start(address) != chunk) return;
      for (void* object : objects) {
        if (object == address) return;
      }
      *magazine->top() = address;
      const Place place = place_of(address);
      const std::string reported = validated(bin, magazine);
      EXPECT_EQ(reported.empty(), place.base == address) << address - d->first << " in bin " << index(bin);
      // What was taken out makes room for the next.
      if (!reported.empty()) magazine->park(magazine->top() - 1);
    };
    for (char* address = chunk; address < chunk + kChunkBytes; address += 4093) check(address);
    for (const ptrdiff_t off : {-1, 0, 1, 8}) {
      for (unsigned i = 0; i < info_of(bin).objects; i += 1 + info_of(bin).objects / 50) check(d->slot(i) + off);
      check(d->first - info_of(bin).size + off);
      check(behind + off);
      check(behind + info_of(bin).size + off);
    }
    *magazine->top() = objects[0];
    bundle_drain(bin, magazine, "test");
  }
}

TEST_P(Validate, ThoroughlyADistantDuplicateIsTakenOut) {
  const BinId bin = bin_of(64);
  unsigned found = 0, checks = 0;
  for (unsigned first = 0; first < 62; first += 5) {
    for (unsigned second = first + 1; second < 62; ++second, ++checks) {
      Magazine* const magazine = magazine_of(bin, 62);
      void* kept = magazine->top()[second];
      magazine->top()[second] = magazine->top()[first];
      found += validated(bin, magazine, true).find("double free of a 64-byte object") != std::string::npos;
      if (magazine->count() == 62) magazine->top()[second] = kept;  // missed
      const bool missed = magazine->count() == 62;
      bundle_drain(bin, magazine, "test");
      if (!missed) give_objects(bin, &kept, 1, "test");
    }
  }
  EXPECT_GE(found * 20, checks * 19) << found << " of " << checks;
}

TEST_P(Validate, AllThatIsWrongIsTakenOutOnceOneThingIsSeen) {
  const BinId bin = bin_of(64);
  Magazine* const magazine = magazine_of(bin, 62);
  std::vector<void*> kept;
  const auto put = [&](unsigned at, void* address) {
    kept.push_back(magazine->top()[at]);
    magazine->top()[at] = address;
  };
  char* const first = static_cast<char*>(magazine->top()[0]);
  put(2, first);
  put(3, first);       // right behind, and
  put(40, first);      // far behind: only seen because of the others
  put(50, first + 1);  // misaligned
  put(51, first + 16);
  const std::string reported = validated(bin, magazine);
  EXPECT_EQ(std::count(reported.begin(), reported.end(), '\n'), 5) << reported;
  EXPECT_EQ(magazine->count(), 57u);
  const std::vector<void*> left = objects_of(magazine);
  EXPECT_EQ(std::set<void*>(left.begin(), left.end()).size(), 57u);
  bundle_drain(bin, magazine, "test");
  for (void* object : kept) give_objects(bin, &object, 1, "test");
}

TEST_P(Validate, OneObjectAndNothingElse) {
  const BinId bin = bin_of(64);
  Magazine* const magazine = magazine_of(bin, 62);
  const std::vector<void*> objects = objects_of(magazine);
  for (unsigned i = 1; i < 62; ++i) magazine->top()[i] = objects[0];
  const std::string reported = validated(bin, magazine);
  EXPECT_EQ(std::count(reported.begin(), reported.end(), '\n'), 61);
  EXPECT_EQ(objects_of(magazine), std::vector<void*>{objects[0]});
  for (void* object : objects) give_objects(bin, &object, 1, "test");
  magazines_put(magazine);
}

// ---- Order; only addresses are looked at ----

template <class Place>
Magazine* magazine_at(unsigned n, Place&& place) {
  Magazine* const magazine = empty_magazine();
  magazine->format(62);
  magazine->set_next(nullptr);
  for (unsigned i = 0; i < n; ++i) {
    *magazine->slot(62 - n + i) = reinterpret_cast<void*>((uintptr_t{1} << 40) + place(i));
  }
  magazine->park(magazine->slot(62 - n));
  return magazine;
}

template <class Place>
bool scattered_at(BinId bin, unsigned n, Place&& place) {
  Magazine* const magazine = magazine_at(n, place);
  const bool result = scattered(bin, magazine);
  magazines_put(magazine);
  return result;
}

// Of a list of `objects`, of which the first magazine has `n` and five more are full.
template <class Place>
bool pins_at(unsigned objects, unsigned n, Place&& place) {
  Magazine* const magazine = magazine_at(n, place);
  Magazine* last = magazine;
  for (unsigned m = 0; m < 5; ++m) {
    Magazine* const next = magazine_at(62, [&](unsigned i) { return place(n + 62 * m + i); });
    last->set_next(next);
    last = next;
  }
  const bool result = pins_pages(magazine, objects);
  magazines_put(magazine);
  return result;
}

constexpr uintptr_t kPage = kPageBytesLeast;

// Places in disorder, `apart` from each other.
auto in_disorder(uintptr_t apart) {
  return [apart](unsigned i) { return i * 37 % 62 * apart; };
}

TEST(Order, WhatLiesInOrderIsNotScattered) {
  const BinId bin = bin_of(64);
  for (unsigned n = 0; n <= 62; ++n) {
    EXPECT_FALSE(scattered_at(bin, n, [](unsigned i) { return i * 64; })) << "up";
    EXPECT_FALSE(scattered_at(bin, n, [](unsigned i) { return (62 - i) * 64; })) << "down";
    EXPECT_FALSE(scattered_at(bin, n, [](unsigned i) { return i * kPage / 2; })) << "half a page apart";
    EXPECT_FALSE(scattered_at(bin, n, [](unsigned i) { return i / 8 * (kPage << 8) + i * 64; })) << "eight together";
  }
}

TEST(Order, WhatLiesFarApartInDisorderIsScattered) {
  for (const size_t size : {8, 16, 64, 100, 400, 512}) {
    for (unsigned n = 8; n <= 62; ++n) {
      EXPECT_TRUE(scattered_at(bin_of(size), n, in_disorder(16 * kPage))) << n << " of " << size;
    }
  }
}

TEST(Order, LittleThatIsFarApartIsNot) {
  const BinId bin = bin_of(64);
  const auto with_far = [&](unsigned every) {
    return scattered_at(bin, 62, [every](unsigned i) { return i * 64 + (i % every == 0 ? i * (kPage << 5) : 0); });
  };
  EXPECT_FALSE(with_far(5)) << "two pairs in five";
  EXPECT_TRUE(with_far(2)) << "all";
}

// By how many pages a list may keep, whatever the size of the groups in which its objects lie.
TEST(Order, ManyObjectsInDisorderPinPages) {
  for (unsigned group = 1; group <= 6; ++group) {
    const auto place = [&](unsigned i) { return i / group * 37 % 62 * 16 * kPage + i % group * 16; };
    for (const unsigned n : {1u, 30u, 62u}) {
      EXPECT_TRUE(pins_at(6000, n, place)) << n << " in groups of " << group;
      EXPECT_FALSE(pins_at(30, n, place)) << "few";
    }
  }
  EXPECT_FALSE(pins_at(16000, 62, [](unsigned i) { return i * 16; })) << "in order";
  EXPECT_TRUE(pins_at(6000, 62, [](unsigned i) { return i * 3 * kPage; })) << "a page each, in order: two magazines";
  EXPECT_TRUE(pins_at(6000, 62, [](unsigned i) { return i * kPage; })) << "neighbouring pages: five magazines";
  EXPECT_FALSE(pins_at(16000, 62, in_disorder(kPage))) << "within a MiB";
}

// A heap of less than 128 KiB; and larger objects.
TEST(Order, WhereItWouldNotMatterNothingIsScattered) {
  EXPECT_FALSE(scattered_at(bin_of(64), 62, in_disorder(kPage / 2)));
  EXPECT_FALSE(scattered_at(bin_of(1000), 62, in_disorder(16 * kPage)));
}

}  // namespace
