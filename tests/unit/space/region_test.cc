#include "space/region.h"

#include <sys/syscall.h>

#include "config/size_classes.h"
#include "os/os.h"
#include "unit/child.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

TEST(Region, ClustersAreCarvedInOrder) {
  char* before = carve_cluster();
  unsigned neighbours = 0;
  for (unsigned i = 0; i < 100; ++i) {
    char* const cluster = carve_cluster();
    ASSERT_TRUE(aligned_to(cluster, kClusterBytes));
    neighbours += cluster == before + kClusterBytes ? 1 : 0;
    before = cluster;
  }
  EXPECT_GE(neighbours, 97u) << "but where a region of 64 MiB and more ends";
}

bool is_there(const char* address) {
  char byte;
  return os::peek(&byte, address, 1);
}

// Holes are not filled: a cluster that goes back is not carved again from its region.
TEST(Region, WhatGoesBackLeavesAHole) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  const int result = in_child([] {
    char* const first = carve_cluster();
    char* const second = carve_cluster();
    char* const third = carve_cluster();
    for (char* const cluster : {first, second, third}) {
      if (!os::commit(cluster, kClusterBytes) || !is_there(cluster)) return kFailed;
    }
    const size_t reserved = region_bytes();
    uncarve_cluster(third);
    if (region_bytes() != reserved - kClusterBytes || is_there(third)) return kFailed;
    if (is_there(third + kClusterBytes - 1)) return kFailed;
    if (!is_there(first) || !is_there(second)) return kFailed;
    for (const size_t until = region_bytes(); region_bytes() == until;) {
      char* const cluster = carve_cluster();
      if (cluster == third) return kFailed;
    }
    return kPassed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST(Region, WhatTheKernelDoesNotTakeBackStaysReserved) {
  const int result = in_child([] {
    char* const cluster = carve_cluster();
    if (!os::commit(cluster, kClusterBytes)) return kFailed;
    const size_t reserved = region_bytes();
    if (!refuse_call(SYS_munmap, ENOMEM)) return kCannot;
    uncarve_cluster(cluster);
    memset(cluster, 1, kClusterBytes);
    return region_bytes() == reserved ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

TEST(Region, WithoutAddressSpaceThereIsNone) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    if (!limit_address_space(20 * kMiB)) return kCannot;
    while (carve_cluster() != nullptr) {
    }
    return carve_cluster() == nullptr ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

}  // namespace
