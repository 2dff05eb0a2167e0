#include "space/large.h"

#include "unit/mappings.h"
#include "unit/space/large_objects.h"

namespace {

// ---- Where the kernel gives no more memory ----

TEST_F(Large, WithoutMemoryOnlyWhatIsCommittedServes) {
  const int result = in_child([] {
    char* const kept = alloc(kMiB);
    char* const freed = alloc(3 * kMiB);
    memset(freed, 1, 3 * kMiB);
    large_free(freed);
    large_purge(process_fields, true, kNoLimit);
    if (!refuse_call(SYS_mprotect, ENOMEM)) return kCannot;
    while (alloc(kLargeMost) != nullptr) {  // what the tests before have committed
    }
    const size_t metadata = metadata_bytes();
    for (unsigned i = 0; i < 1000; ++i) {
      if (alloc(kLargeMost) != nullptr) return kFailed;
      char* const again = alloc(2 * kMiB);
      if (again == nullptr) return kFailed;
      memset(again, 1, 2 * kMiB);
      large_free(again);
    }
    memset(kept, 1, kMiB);
    return metadata_bytes() == metadata && large_check(process_fields) ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

TEST_F(Large, AChunkThatWasLentInVainComesBack) {
  std::vector<char*> objects = {alloc(kLargeMost), alloc(kLargeMost)};
  free_all(objects);
  const LargeStats before = large_stats(process_fields);
  for (unsigned i = 0; i < 100; ++i) {
    char* const chunk = lend_chunk();
    ASSERT_NE(chunk, nullptr);
    EXPECT_TRUE(os::commit(chunk, kChunkBytes));
    EXPECT_EQ(resident_bytes(chunk, kChunkBytes), 0u);
    EXPECT_TRUE(take_back_chunk(chunk));
    ASSERT_TRUE(large_check(process_fields));
  }
  EXPECT_EQ(large_stats(process_fields).taken, before.taken);
  EXPECT_EQ(large_stats(process_fields).reserved, before.reserved);
  int on_stack = 0;
  EXPECT_FALSE(take_back_chunk(reinterpret_cast<char*>(&on_stack)));
}

// As numpy does for its arrays from 4 MiB on.
TEST_F(Large, HugePagesThatTheProgramAskedForEndWithTheObject) {
  if (kEmulated) GTEST_SKIP() << "an emulator does not pass the advice on";
  char* const object = alloc(5 * kMiB);
  char* const neighbour = alloc(100 * kKiB);
  auto* const advised = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(object), 2 * kMiB));
  memset(object, 1, 5 * kMiB);
  ASSERT_EQ(madvise(advised, 2 * kMiB, MADV_HUGEPAGE), 0);
  ASSERT_EQ(mapping_flags(advised).find(" nh "), std::string::npos) << "the program may have that";
  EXPECT_TRUE(large_free(object));
  large_purge(process_fields, true, kNoLimit);
  EXPECT_NE(mapping_flags(advised).find(" nh "), std::string::npos);
  EXPECT_EQ(mapping_flags(advised), mapping_flags(neighbour));
  EXPECT_TRUE(large_free(neighbour));
}

}  // namespace
