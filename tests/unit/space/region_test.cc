#include "space/region.h"

#include <set>

#include "config/size_classes.h"
#include "os/os.h"
#include "unit/child.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

TEST(Region, ChunksAreCarvedInOrder) {
  char* before = carve_chunk();
  unsigned neighbours = 0;
  for (unsigned i = 0; i < 100; ++i) {
    char* const chunk = carve_chunk();
    ASSERT_TRUE(aligned_to(chunk, kChunkBytes));
    neighbours += chunk == before + kChunkBytes ? 1 : 0;
    before = chunk;
  }
  EXPECT_GE(neighbours, 97u) << "but where a region of 64 MiB and more ends";
}

TEST(Region, TheLastChunkGoesBackToItsRegionAndOthersLeaveAHole) {
  const int result = in_child([] {
    char* const first = carve_chunk();
    char* const second = carve_chunk();
    const size_t reserved = region_bytes();
    uncarve_chunk(second);
    if (region_bytes() != reserved || carve_chunk() != second) return kFailed;
    uncarve_chunk(first);
    char byte;
    return region_bytes() == reserved - kChunkBytes && !os::peek(&byte, first, 1) ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST(Region, WithoutAddressSpaceThereIsNone) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    if (!limit_address_space(20 * kMiB)) return kCannot;
    while (carve_chunk() != nullptr) {
    }
    return carve_chunk() == nullptr ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

}  // namespace
