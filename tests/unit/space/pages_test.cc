#include "space/pages.h"

#include "os/os.h"
#include "space/housekeeper.h"
#include "unit/child.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// A range whose pages hold 0xa5, or nothing, as `holds` says of each.
class Range {
 public:
  explicit Range(size_t pages) : bytes_(pages * page_), at_(static_cast<char*>(os::reserve(bytes_, page_))) {
    EXPECT_TRUE(os::commit(at_, bytes_));
  }
  ~Range() { os::unreserve(at_, bytes_); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  template <class Holds>
  void touch(Holds&& holds) {
    EXPECT_TRUE(os::purge(at_, bytes_));
    for (size_t i = 0; i < bytes_ / page_; ++i) {
      if (holds(i)) memset(at_ + i * page_, 0xa5, page_);
    }
  }
  size_t resident_pages() const {
    std::vector<unsigned char> there(bytes_ / page_);
    EXPECT_TRUE(residency(at_, bytes_, there.data()));
    size_t n = 0;
    for (const unsigned char page : there) n += page & 1;
    return n;
  }
  char* at() const { return at_; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t page_ = os::page_bytes();
  const size_t bytes_;
  char* const at_;
};

TEST(ZeroPages, AnyRangeOfAnyPagesBecomesZeroAndNothingElse) {
  const size_t page = os::page_bytes();
  Range range(kZeroByPurge / page + 700);
  std::mt19937 random(9);
  for (unsigned round = 0; round < rounds(60); ++round) {
    const unsigned often = 1 + random() % 50;
    range.touch([&](size_t) { return random() % often == 0; });
    std::vector<char> before(range.at(), range.at() + range.bytes());
    const size_t from = random() % (699 * page);
    const size_t bytes = random() % 2 == 0 ? random() % (4 * page) : kZeroByPurge - page + random() % (2 * page);
    zero_pages(range.at() + from, bytes);
    ASSERT_TRUE(all_zero(range.at() + from, bytes)) << from << " " << bytes;
    ASSERT_EQ(memcmp(range.at(), before.data(), from), 0);
    ASSERT_EQ(memcmp(range.at() + from + bytes, before.data() + from + bytes, range.bytes() - from - bytes), 0);
  }
}

TEST(ZeroPages, OfALargeRangeThePagesGoBack) {
  Range range(kZeroByPurge / os::page_bytes());
  range.touch([](size_t) { return true; });
  const PageDelta delta;
  zero_pages(range.at(), range.bytes());
  EXPECT_EQ(range.resident_pages(), 0u);
  EXPECT_EQ(delta.purged(), range.bytes());
}

TEST(ZeroPages, LooksSparseWhereHalfOfItIsZero) {
  Range range(1024);
  for (const size_t every : {1, 2, 8, 1000}) {
    range.touch([every](size_t i) { return i / 64 % every == 0; });
    EXPECT_EQ(looks_sparse(range.at(), range.bytes()), every != 1) << every;
  }
}

// A header in each of so many equal parts, as tables with shards have.
TEST(ZeroPages, LooksSparseWithAHeaderInEachPart) {
  for (const size_t pages : {256, 1024, 8192}) {
    for (const size_t parts : {16, 32, 64, 128}) {
      if (parts * 4 > pages) continue;  // every second page is not sparse
      Range range(pages);
      range.touch([pages, parts](size_t i) { return i % (pages / parts) == 0; });
      EXPECT_TRUE(looks_sparse(range.at(), range.bytes())) << pages << " pages, " << parts << " parts";
    }
  }
}

TEST(ZeroPages, WhatIsSmallerIsCleared) {
  Range range(kZeroByPurge / os::page_bytes() - 1);
  range.touch([](size_t) { return true; });
  zero_pages(range.at(), range.bytes());
  EXPECT_EQ(range.resident_pages(), range.bytes() / os::page_bytes());
  EXPECT_TRUE(all_zero(range.at(), range.bytes()));
}

TEST(ZeroPages, WhatMayNotGoIsCleared) {
  Range range(kZeroByPurge / os::page_bytes());
  range.touch([](size_t i) { return i % 8 == 0; });
  if (!lock_page(range.at() + 16 * os::page_bytes())) GTEST_SKIP() << "no memory may be locked here";
  zero_pages(range.at(), range.bytes());
  EXPECT_TRUE(all_zero(range.at(), range.bytes()));
  unlock_page(range.at() + 16 * os::page_bytes());
}

TEST(Pages, PurgesAreCounted) {
  const size_t page = os::page_bytes();
  auto* const at = static_cast<char*>(os::reserve(4 * page, page));
  ASSERT_TRUE(os::commit(at, 4 * page));
  memset(at, 3, 4 * page);
  const PageDelta delta;
  EXPECT_TRUE(purge_pages(at, 3 * page));
  EXPECT_EQ(delta.purged(), 3 * page);
  EXPECT_EQ(delta.calls(), 1u);
  EXPECT_TRUE(all_zero(at, 3 * page));
  EXPECT_EQ(at[3 * page], 3);
  EXPECT_TRUE(purge_pages(at, 0));
  EXPECT_EQ(delta.calls(), 1u) << "nothing to do is no call";
  EXPECT_FALSE(purge_pages(at + 1, page));
  EXPECT_EQ(delta.purged(), 3 * page);
  EXPECT_EQ(delta.calls(), 2u);
  EXPECT_EQ(delta.resident(), 0) << "the caller knows what it was";
  os::unreserve(at, 4 * page);
}

TEST(Pages, ManyRangesGoByOneCallOfTheHousekeepers) {
  const size_t page = os::page_bytes();
  auto* const at = static_cast<char*>(os::reserve(128 * page, page));
  ASSERT_TRUE(os::commit(at, 128 * page));
  os::PageRange ranges[64];
  for (unsigned i = 0; i < 64; ++i) ranges[i] = {at + 2 * i * page, page};
  memset(at, 3, 128 * page);
  const bool one_call = os::purge_some(ranges, 64) == 64;
  for (const bool housekeeper : {false, true}) {
    memset(at, 3, 128 * page);
    in_housekeeper = housekeeper;
    const PageDelta delta;
    EXPECT_EQ(purge_ranges(ranges, 64), ~uint64_t{0});
    EXPECT_EQ(delta.purged(), 64 * page);
    EXPECT_EQ(delta.calls(), housekeeper ? (one_call ? 1u : 64u) : 64u);
    for (unsigned i = 0; i < 128; ++i) ASSERT_EQ(at[i * page], i % 2 == 0 ? 0 : 3);
    if (lock_page(at + 10 * page)) {
      EXPECT_EQ(purge_ranges(ranges, 64), ~(uint64_t{1} << 5)) << "all but the one that is locked";
      unlock_page(at + 10 * page);
    }
  }
  in_housekeeper = false;
  os::unreserve(at, 128 * page);
}

}  // namespace
