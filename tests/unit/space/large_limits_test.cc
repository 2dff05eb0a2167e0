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

// What is there stays, and counts no more; what its pages were is known by granule.
TEST_F(Large, AWarmChunkIsLentWithItsPages) {
  const int result = in_child([this] {
    const std::vector<char*> o = row({300});
    memset(o[0], 7, 300 * step);
    const int64_t resident = delta_.resident();
    EXPECT_TRUE(large_free(o[0]));
    const int64_t dirty = delta_.dirty();
    constexpr unsigned kGranules = kChunkBytes / kGranuleBytes;
    uint64_t there;
    char* const chunk = lend_resident_chunk(&there);
    EXPECT_TRUE(chunk != nullptr && aligned_to(chunk, kChunkBytes));
    const size_t bytes = popcount(there) * kGranuleBytes;
    EXPECT_GE(bytes, kChunkBytes / 2);
    EXPECT_EQ(there & ~low_mask(kGranules), 0u);
    EXPECT_EQ(delta_.resident(), resident - static_cast<int64_t>(bytes));
    EXPECT_EQ(delta_.dirty(), dirty - static_cast<int64_t>(bytes));
    unsigned sevens = 0;
    for (size_t g = 0; g < kGranules; ++g) sevens += (there >> g & 1) != 0 && chunk[g * kGranuleBytes + 5000] == 7;
    EXPECT_GE(sevens, kGranules - 2) << "but for the granules at the object's ends";
    memset(chunk, 1, kChunkBytes);
    EXPECT_FALSE(large_free(chunk));
    expect_exact_accounts();
    // So are the object's others, until fewer than half of the granules of any are there.
    std::vector<char*> lent = {chunk};
    while (char* const next = lend_resident_chunk(&there)) {
      EXPECT_GE(popcount(there), kGranules / 2);
      EXPECT_EQ(std::count(lent.begin(), lent.end(), next), 0);
      lent.push_back(next);
    }
    EXPECT_GE(lent.size(), 300 * step / kChunkBytes - 1);
    expect_exact_accounts();
    for (char* const one : lent) {
      EXPECT_TRUE(purge_pages(one, kChunkBytes));
      EXPECT_TRUE(take_back_chunk(one));
    }
    large_purge(process_fields, true, kNoLimit);
    EXPECT_EQ(delta_.dirty(), 0);
    EXPECT_EQ(lend_resident_chunk(&there), nullptr);
    return HasFailure() ? kFailed : kPassed;
  });
  EXPECT_EQ(result, kPassed);
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
