#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

std::string str(const Text& text) { return {text.data(), text.length()}; }

TEST(Text, NumbersAsPrintfWritesThem) {
  std::mt19937_64 random(2);
  std::vector<uint64_t> numbers = {0, 1, 9, 10, 99, 100, 4294967295u, 4294967296u, UINT64_MAX - 1, UINT64_MAX};
  for (unsigned i = 0; i < rounds(2000); ++i) numbers.push_back(random() >> random() % 64);
  for (const uint64_t n : numbers) {
    char expected[32];
    snprintf(expected, sizeof expected, "%" PRIu64, n);
    Text text;
    text << n;
    ASSERT_EQ(str(text), expected);
  }
}

TEST(Text, AddressesInLowerCaseWithoutLeadingZeros) {
  const auto written = [](uintptr_t n) {
    Text text;
    text << reinterpret_cast<const void*>(n);
    return str(text);
  };
  EXPECT_EQ(written(0), "0x0");
  EXPECT_EQ(written(0xa), "0xa");
  EXPECT_EQ(written(0x10), "0x10");
  EXPECT_EQ(written(0x7f00dead0000), "0x7f00dead0000");
  EXPECT_EQ(written(UINTPTR_MAX), "0xffffffffffffffff");
}

TEST(Text, ColumnsAlignRightAndNeverCut) {
  const auto column = [](uint64_t n, unsigned width) {
    Text text;
    text.column(n, width);
    return str(text);
  };
  EXPECT_EQ(column(0, 1), "0");
  EXPECT_EQ(column(0, 4), "   0");
  EXPECT_EQ(column(1234, 4), "1234");
  EXPECT_EQ(column(12345, 4), "12345");
  EXPECT_EQ(column(10, 5), "   10");
}

TEST(Text, PiecesJoin) {
  Text text;
  text << "bin " << uint64_t{7} << ": ";
  text.put("abcdef", 3).put("xyz", 0) << "!";
  text.put('?');
  EXPECT_EQ(str(text), "bin 7: abc!?");
  text.clear();
  EXPECT_EQ(text.length(), 0u);
  text << "new";
  EXPECT_EQ(str(text), "new");
}

TEST(Text, WhatDoesNotFitIsCutOff) {
  Text text;
  const std::string ten = "0123456789";
  for (unsigned i = 0; i < 200; ++i) text << ten.c_str();
  const std::string kept = str(text);
  ASSERT_GE(kept.size(), 1000u);
  ASSERT_LT(kept.size(), 2000u);
  for (size_t i = 0; i < kept.size(); ++i) ASSERT_EQ(kept[i], ten[i % 10]);
  const size_t full = text.length();
  text << uint64_t{5} << "more" << static_cast<const void*>(&text);
  EXPECT_EQ(text.length(), full);
}

}  // namespace
