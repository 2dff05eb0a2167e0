// Proofs by exhaustion: every size, every offset, every alignment.
#include "config/size_classes.h"

#include <set>

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

size_t room(unsigned i) { return info_of(bin_id(i)).size; }

TEST(SizeClasses, BinsAreNumberedByKindAndSize) {
  EXPECT_EQ(info_of(BinId::kNone).size, 0u);
  EXPECT_EQ(info_of(BinId::kNone).magazine_most, 0u);
  std::set<uint32_t> kinds;
  for (unsigned i = 1; i < kBins; ++i) EXPECT_TRUE(kinds.insert(info_of(bin_id(i)).size).second) << i << " has a twin";
  const auto ascending = [](unsigned first, unsigned end) {
    for (unsigned i = first + 1; i < end; ++i) EXPECT_GT(info_of(bin_id(i)).size, info_of(bin_id(i - 1)).size) << i;
  };
  ascending(1, kFirstAligned);
  ascending(kFirstAligned, kBins);
  for (unsigned code = kBins; code < kCodes; ++code) EXPECT_EQ(kSizes.info[code].size, 0u);
}

// Bins for aligned requests serve no request by its size alone.
TEST(SizeClasses, BinOfIsTheSmallestGeneralBinThatFits) {
  unsigned smallest = 1;
  for (size_t size = 0; size <= kMediumMost; ++size) {
    // The bins before kFirstAligned ascend, so one walk over both is a search over all.
    while (room(smallest) < size) ++smallest;
    const unsigned bin = index(bin_of(size));
    if (bin != smallest) ASSERT_EQ(bin, smallest) << "size " << size;
  }
  EXPECT_EQ(smallest, kFirstAligned - 1);
  for (unsigned i = 1; i < kFirstAligned; ++i) {
    EXPECT_EQ(index(bin_of(room(i))), i) << "the most that a bin serves is served by it";
    if (room(i) < kMediumMost) EXPECT_NE(index(bin_of(room(i) + 1)), i) << i;
  }
}

TEST(SizeClasses, TablesAgreeWithTheSearch) {
  const auto search = [](size_t size) {
    for (unsigned i = 1; i < kFirstAligned; ++i) {
      if (info_of(bin_id(i)).size >= size) return i;
    }
    return 0u;
  };
  for (size_t size = 0; size <= kSmallTableMost; ++size) {
    ASSERT_EQ(kSizes.small_cursor[size], search(size) * kCursorBytes) << size;
  }
  for (size_t size = kSmallTableMost + 1; size <= kMediumMost; ++size) {
    ASSERT_EQ(kSizes.medium_bin[(size + 63) / 64], search(size)) << size;
  }
}

TEST(SizeClasses, SmallObjectsAreAlignedAsTheirSizeAllows) {
  for (unsigned i = 1; i < kBins; ++i) {
    const BinInfo& info = info_of(bin_id(i));
    EXPECT_EQ(info.size % (i == 1 ? 8 : 16), 0u) << "bin " << i;
    EXPECT_EQ(info.size % (size_t{1} << info.natural_shift), 0u);
    EXPECT_NE(info.size % (size_t{2} << info.natural_shift), 0u) << "natural_shift is as much as there is";
  }
}

TEST(SizeClasses, MediumSizesAreOddMultiplesOfACacheLine) {
  for (unsigned i = 1; i < kFirstAligned; ++i) {
    const uint32_t size = info_of(bin_id(i)).size;
    if (size <= 512) continue;
    EXPECT_EQ(size % 64, 0u) << size;
    EXPECT_EQ(size / 64 % 2, 1u) << size;
  }
}

TEST(SizeClasses, StepsAreBounded) {
  // 16 bytes to 128; from there a quarter.
  size_t before = 8;
  for (unsigned i = 2; i < kFirstAligned; ++i) {
    const size_t step = room(i) - before;
    EXPECT_TRUE(step <= 16 || 4 * step <= before) << before << " to " << room(i);
    before = room(i);
  }
}

// What of the slot a request does not use.
double waste(size_t size) {
  const double slot = info_of(bin_of(size)).size;
  return (slot - static_cast<double>(size)) / slot;
}

TEST(SizeClasses, InternalWasteIsUnderATenthOnAverage) {
  double sum = 0;
  for (size_t size = 1; size <= 16 * kKiB; ++size) sum += waste(size);
  const double average = sum / (16 * kKiB);
  EXPECT_LT(average, 0.10);
  RecordProperty("average_waste_per_mille", static_cast<int>(average * 1000));
}

TEST(SizeClasses, WorstInternalWasteIsAQuarter) {
  // Over all sizes above 64 bytes; below, a step of 16 is more of the slot.
  for (size_t size = 65; size <= kMediumMost; ++size) ASSERT_LE(waste(size), 0.25) << size;
  for (size_t size = 9; size <= 64; ++size) ASSERT_LE(info_of(bin_of(size)).size - size, 15u) << size;
}

TEST(SizeClasses, DivisionIsExactForEveryBinAndOffset) {
  for (unsigned i = 1; i < kBins; ++i) {
    const BinInfo& info = info_of(bin_id(i));
    // Counting up instead of dividing: an independent answer, and a fast one.
    uint64_t quotient = 0, next = info.size;
    uint64_t product = 0;
    uint64_t wrong = 0;
    for (uint64_t offset = 0; offset < kChunkBytes; ++offset, product += info.multiplier) {
      if (offset == next) {
        ++quotient;
        next += info.size;
      }
      wrong += (product >> kDivisionShift) != quotient ? 1 : 0;
    }
    ASSERT_EQ(wrong, 0u) << "bin " << i << " of " << info.size;
    // The product of the last offset did not overflow.
    ASSERT_LE(info.multiplier, UINT64_MAX / kChunkBytes) << "bin " << i;
  }
}

TEST(SizeClasses, ChunksAreDividedIntoFolios) {
  for (unsigned i = 1; i < kBins; ++i) {
    const BinInfo& info = info_of(bin_id(i));
    EXPECT_LE(uint64_t{info.objects} * info.size + kColourMost, kChunkBytes);
    EXPECT_GT((uint64_t{info.objects} + 1) * info.size + kColourMost, kChunkBytes) << "one more would fit: bin " << i;
    EXPECT_EQ((info.folios - 1u) * kFolioObjects + popcount(info.last_valid), info.objects) << "bin " << i;
    EXPECT_EQ(info.last_valid & (info.last_valid + 1), 0u) << "valid bits are the lowest: bin " << i;
    EXPECT_GE(info.magazine_most, 2u) << "threads cache every bin";
    EXPECT_LE(info.magazine_most, kMagazineObjects);
    EXPECT_LE(uint64_t{info.magazine_most} * info.size, kMagazineBytesMost);
  }
}

// aligned_bin by its contract: the smallest bin that has the size and, by it alone, the alignment.
BinId aligned_by_search(size_t alignment, size_t size) {
  unsigned best = 0;
  for (unsigned i = 1; i < kBins; ++i) {
    const BinInfo& info = info_of(bin_id(i));
    if (info.size % alignment == 0 && room(i) >= size && (best == 0 || info.size < info_of(bin_id(best)).size))
      best = i;
  }
  return bin_id(best);
}

TEST(SizeClasses, AlignedBinIsTheSmallestThatFitsAndIsAligned) {
  std::set<size_t> sizes = {0, kMediumMost + 1, kMediumMost * 2};
  for (unsigned i = 1; i < kBins; ++i) {
    for (size_t size = room(i) - 2; size <= room(i) + 2; ++size) sizes.insert(size);
  }
  for (size_t size = 1; size <= 4096; ++size) sizes.insert(size);
  for (size_t size = 4096; size <= kMediumMost; size += 97) sizes.insert(size);
  for (size_t alignment = 1; alignment <= 4 * kMiB; alignment *= 2) {
    for (const size_t size : sizes) {
      const BinId bin = aligned_bin(alignment, size);
      ASSERT_EQ(index(bin), size > kMediumMost ? 0u : index(aligned_by_search(alignment, size)))
          << alignment << " " << size;
      // The largest aligned bin has every alignment up to its size.
      if (std::max(size, alignment) <= 32768) ASSERT_NE(bin, BinId::kNone) << alignment << " " << size;
    }
  }
}

TEST(SizeClasses, EveryPowerOfTwoHasABinOfItsOwn) {
  for (size_t size = 8; size <= kMediumMost; size *= 2) {
    const BinId bin = aligned_bin(size, size);
    EXPECT_EQ(info_of(bin).size, size) << "an object aligned to its size wastes nothing";
  }
}

}  // namespace
