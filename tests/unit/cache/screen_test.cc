#include "cache/screen.h"

#include <set>

#include "unit/cache/magazines.h"
#include "unit/stderr_capture.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// The last place that is looked at: pairs are (i, i + 2), four at a time.
unsigned looked_at(unsigned count) { return count < 6 ? 0 : (count - 6) / 4 * 4 + 4; }

class Screen : public ::testing::Test {
 protected:
  Screen() { options.errors = kErrorsWarn; }
  ~Screen() override {
    for (const BinId bin : all_bins()) EXPECT_EQ(taken_objects(bin), 0u) << "bin " << index(bin);
  }
  static std::string screened(BinId bin, Magazine* magazine) {
    StderrCapture capture;
    screen(bin, magazine, "FUNC");
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

TEST_F(Screen, WhatIsRightStaysAsItIs) {
  for (const BinId bin : all_bins()) {
    for (unsigned n = 0; n <= info_of(bin).magazine_most; ++n) {
      Magazine* const magazine = magazine_of(bin, n);
      const std::vector<void*> before = objects_of(magazine);
      EXPECT_EQ(screened(bin, magazine), "") << "bin " << index(bin);
      EXPECT_EQ(objects_of(magazine), before);
      magazine_drain(bin, magazine, "test");
    }
  }
}

TEST_F(Screen, AnObjectAgainAfterOneOtherIsTakenOut) {
  for (const BinId bin : {bin_of(8), bin_of(64), bin_of(1000), bin_of(8000)}) {
    const unsigned most = info_of(bin).magazine_most;
    for (unsigned i = 0; i < looked_at(most); ++i) {
      Magazine* const magazine = magazine_of(bin, most);
      const std::vector<void*> good = sorted(magazine);
      // In the place of another, which the test keeps.
      void* const kept = magazine->top()[i + 2];
      void* const twice = magazine->top()[i];
      magazine->top()[i + 2] = twice;
      const std::string told = screened(bin, magazine);
      EXPECT_NE(told.find("double free of a " + std::to_string(info_of(bin).size) + "-byte object"), std::string::npos)
          << i;
      EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
      std::vector<void*> expected = good;
      expected.erase(std::find(expected.begin(), expected.end(), kept));
      EXPECT_EQ(sorted(magazine), expected) << "once each, place " << i << " of bin " << index(bin);
      magazine_drain(bin, magazine, "test");
      give_objects(bin, &kept, 1, "test");
    }
  }
}

TEST_F(Screen, AnAddressLessAlignedThanEveryObjectIsTakenOut) {
  for (const BinId bin : {bin_of(8), bin_of(64), bin_of(160), bin_of(1000), aligned_bin(4096, 4096)}) {
    const unsigned most = info_of(bin).magazine_most;
    for (unsigned i = 0; i < looked_at(most); i += 3) {
      for (size_t inside = 1; inside < size_t{1} << info_of(bin).natural_shift; inside *= 2) {
        Magazine* const magazine = magazine_of(bin, most);
        std::vector<void*> expected = sorted(magazine);
        void* const object = magazine->top()[i];
        magazine->top()[i] = static_cast<char*>(object) + inside;
        const std::string told = screened(bin, magazine);
        EXPECT_NE(told.find("not the start of an object: inside a"), std::string::npos) << inside << " at " << i;
        EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
        expected.erase(std::find(expected.begin(), expected.end(), object));
        EXPECT_EQ(sorted(magazine), expected) << "bin " << index(bin);
        magazine_drain(bin, magazine, "test");
        give_objects(bin, &object, 1, "test");
      }
    }
  }
}

TEST_F(Screen, AllThatIsWrongIsTakenOutOnceOneThingIsSeen) {
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
  put(40, first);      // far behind: only seen because of the one before
  put(50, first + 1);  // misaligned
  put(51, first + 16);
  const std::string told = screened(bin, magazine);
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 5) << told;
  EXPECT_EQ(magazine->count(), 57u);
  const std::vector<void*> left = objects_of(magazine);
  EXPECT_EQ(std::set<void*>(left.begin(), left.end()).size(), 57u);
  magazine_drain(bin, magazine, "test");
  for (void* object : kept) give_objects(bin, &object, 1, "test");
}

TEST_F(Screen, OneObjectAndNothingElse) {
  const BinId bin = bin_of(64);
  Magazine* const magazine = magazine_of(bin, 62);
  const std::vector<void*> objects = objects_of(magazine);
  for (unsigned i = 1; i < 62; ++i) magazine->top()[i] = objects[0];
  const std::string told = screened(bin, magazine);
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 61);
  EXPECT_EQ(objects_of(magazine), std::vector<void*>{objects[0]});
  for (void* object : objects) give_objects(bin, &object, 1, "test");
  magazines_put(magazine);
}

}  // namespace
