#include "store/commit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/os.h"
#include "space/chunks.h"
#include "store/bin.h"
#include "store/occupancy.h"
#include "unit/child.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

bool is_writable(void* page) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const bool written = write(ends[1], "x", 1) == 1 && read(ends[0], page, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return written;
}

// A new chunk of the bin, an object at a time.
template <class Visit>
void take_chunk_one_by_one(BinId bin, Visit&& visit) {
  const char* chunk = nullptr;
  for (;;) {
    void* object = nullptr;
    ASSERT_EQ(take_objects(process_store, bin, &object, 1), 1u);
    if (chunk == nullptr) chunk = chunk_start(object);
    if (chunk_start(object) != chunk) return;
    visit(static_cast<char*>(object));
  }
}

// Where the kernel has refused the cluster as a whole.
TEST(Commit, InStepsThatDouble) {
  const int result = in_child([] {
    if (!refuse_call_with(SYS_mprotect, kClusterBytes, ENOMEM, 1)) return kCannot;
    const BinId bin = bin_of(5000);
    unsigned steps = 0;
    size_t before = 0;
    take_chunk_one_by_one(bin, [&](char* object) {
      const Descriptor& d = *place_of(object).descriptor;
      EXPECT_FALSE(is_cluster(object, kClusterCommitted));
      const size_t now = committed_bytes(d);
      EXPECT_GE(now, static_cast<size_t>(object - d.chunk()) + info_of(bin).size) << "what is taken is committed";
      if (now != before) ++steps;
      before = now;
    });
    EXPECT_EQ(before, kChunkBytes);
    EXPECT_LE(steps, 4u);
    EXPECT_GE(steps, 3u);
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

// A program may protect its objects' pages: mprotect(2) shows it with posix_memalign.
TEST(Commit, WhatIsCommittedIsLeftAlone) {
  const int result = in_child([] {
    const size_t page = os::page_bytes();
    std::vector<char*> pages;
    take_chunk_one_by_one(bin_of(3 * page), [&](char* object) {
      auto* const first = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(object), page));
      EXPECT_TRUE(is_writable(first));
      EXPECT_EQ(mprotect(first, page, PROT_READ), 0);
      pages.push_back(first);
    });
    for (char* const each : pages) EXPECT_FALSE(is_writable(each));
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
  EXPECT_EQ(result, kPassed);
}

}  // namespace
