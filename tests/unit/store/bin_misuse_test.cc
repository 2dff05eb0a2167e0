// What give_objects finds wrong and what it says, word for word.
#include "store/bin.h"
#include "store/check.h"
#include "store/occupancy.h"
#include "unit/child.h"
#include "unit/stderr_capture.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

class BinMisuse : public ::testing::Test {
 protected:
  BinMisuse() { options.errors = kErrorsWarn; }

  char* take(BinId bin) {
    void* object = nullptr;
    EXPECT_EQ(take_objects(process_store, bin, &object, 1), 1u);
    return static_cast<char*>(object);
  }
  // What giving these objects writes.
  std::string give(BinId bin, std::vector<void*> objects) {
    StderrCapture capture;
    give_objects(bin, objects.data(), static_cast<unsigned>(objects.size()), "FUNC");
    return capture.stop();
  }
  std::string double_free(BinId bin, void* object) {
    return "folio: FUNC(" + hex(object) + "): double free of a " + object_words(bin) +
           " (see docs/errors.md#double-free)\n";
  }
  std::string interior(BinId bin, void* address, void* base) {
    return "folio: FUNC(" + hex(address) + "): not the start of an object: inside a " + object_words(bin) + " at " +
           hex(base) + " (see docs/errors.md#invalid-free)\n";
  }

 private:
  SavedOptions saved_;
};

TEST_F(BinMisuse, RightUseIsSilent) {
  for (const BinId bin : all_bins()) EXPECT_EQ(give(bin, {take(bin)}), "");
}

TEST_F(BinMisuse, ASecondGiveIsADoubleFree) {
  for (const BinId bin : all_bins()) {
    char* const object = take(bin);
    EXPECT_EQ(give(bin, {object}), "");
    EXPECT_EQ(give(bin, {object}), double_free(bin, object));
    EXPECT_EQ(give(bin, {object}), double_free(bin, object));
    EXPECT_TRUE(check_bin(process_store, bin)) << index(bin);
  }
}

TEST_F(BinMisuse, TwiceInOneCallIsReportedOnceForEachTooMuch) {
  const BinId bin = bin_of(64);
  char* const object = take(bin);
  char* const other = take(bin);
  EXPECT_EQ(give(bin, {object, other, object}), double_free(bin, object));
  EXPECT_FALSE(place_of(object).taken());
  EXPECT_FALSE(place_of(other).taken());
  char* const again = take(bin);
  EXPECT_EQ(give(bin, {again, again, again}), double_free(bin, again) + double_free(bin, again));
  EXPECT_TRUE(check_bin(process_store, bin));
}

TEST_F(BinMisuse, AnInteriorPointerIsReportedWithItsObject) {
  for (const BinId bin : all_bins()) {
    char* const object = take(bin);
    const size_t bytes = static_cast<size_t>(place_of(object).slot_end - object);
    for (const size_t at : {size_t{1}, bytes / 2, bytes - 1}) {
      EXPECT_EQ(give(bin, {object + at}), interior(bin, object + at, object));
    }
    EXPECT_TRUE(place_of(object).taken()) << "nothing was given";
    EXPECT_EQ(give(bin, {object}), "");
  }
}

TEST_F(BinMisuse, TheUnusedEndOfAChunkIsNoObject) {
  const BinId bin = bin_of(3000);
  char* const object = take(bin);
  char* const end = chunk_start(object) + kChunkBytes - 8;
  ASSERT_GE(object_number(*place_of(object).descriptor, end), info_of(bin).objects);
  EXPECT_EQ(give(bin, {end}), "folio: FUNC(" + hex(end) +
                                  "): not the start of an object: in an unused part of a chunk (bin " +
                                  std::to_string(index(bin)) + ") (see docs/errors.md#invalid-free)\n");
  EXPECT_EQ(give(bin, {object}), "");
}

TEST_F(BinMisuse, TheGoodOnesOfACallAreGivenAllTheSame) {
  const BinId bin = bin_of(64);
  char* const a = take(bin);
  char* const b = take(bin);
  EXPECT_EQ(give(bin, {a, a + 8, b}), interior(bin, a + 8, a));
  EXPECT_FALSE(place_of(a).taken());
  EXPECT_FALSE(place_of(b).taken());
}

TEST_F(BinMisuse, IgnoreIsSilentAndChangesNothing) {
  options.errors = kErrorsIgnore;
  const BinId bin = bin_of(64);
  char* const object = take(bin);
  EXPECT_EQ(give(bin, {object + 8, object, object}), "");
  EXPECT_EQ(give(bin, {object}), "");
  EXPECT_TRUE(check_bin(process_store, bin));
}

TEST_F(BinMisuse, ADamagedDescriptorIsReportedAndNotUsed) {
  const BinId bin = bin_of(64);
  char* const object = take(bin);
  auto* const d = static_cast<Descriptor*>(descriptor_at(object));
  const std::string expected = "folio: FUNC(" + hex(object) + "): descriptor of chunk " + hex(chunk_start(object)) +
                               " is damaged (see docs/errors.md#damaged-descriptor)\n";
  Descriptor before;
  memcpy(static_cast<void*>(&before), d, sizeof before);
  const auto expect_reported = [&](const char* what) {
    EXPECT_EQ(give(bin, {object}), expected) << what;
    EXPECT_TRUE(place_of(object).damaged) << what;
    memcpy(static_cast<void*>(d), &before, sizeof before);
    EXPECT_TRUE(place_of(object).taken()) << what;
  };
  for (const unsigned wrong : {0u, index(bin) + 1, kBins - 1, kCodeHugeStart, kCodes, 128u, 255u}) {
    d->bin = bin_id(wrong);
    expect_reported("the bin");
  }
  d->first += kChunkBytes;
  expect_reported("the chunk");
  d->first = nullptr;
  expect_reported("the chunk");
  d->seal ^= 0x100;
  expect_reported("the seal");
  memset(static_cast<void*>(d), 0, sizeof *d);
  expect_reported("zeroes");
  memset(static_cast<void*>(d), 0x41, sizeof *d);
  expect_reported("a string");
  EXPECT_EQ(give(bin, {object}), "");
}

TEST(BinMisuseDeathTest, AbortIsTheDefault) {
  const BinId bin = bin_of(64);
  void* object = nullptr;
  ASSERT_EQ(take_objects(process_store, bin, &object, 1), 1u);
  give_objects(bin, &object, 1, "free");
  EXPECT_DEATH(give_objects(bin, &object, 1, "free"), "folio: free\\(0x[0-9a-f]+\\): double free of a 64-byte object");
}

}  // namespace

TEST_F(BinMisuse, TwiceInTwoListsIsADoubleFreeToo) {
  const BinId bin = bin_of(64);
  char* const object = take(bin);
  void* const other = take(bin);
  void* const first[] = {object, other};
  void* const second[] = {object, object + 8};
  const ObjectList lists[] = {{first, 2}, {second, 2}};
  StderrCapture capture;
  give_lists(bin, lists, 2, "FUNC");
  EXPECT_EQ(capture.stop(), double_free(bin, object) + interior(bin, object + 8, object));
  EXPECT_FALSE(place_of(object).taken());
  EXPECT_FALSE(place_of(other).taken());
}
