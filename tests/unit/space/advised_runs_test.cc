#include "space/advised_runs.h"

#include <gtest/gtest.h>

#include "config/size_classes.h"
#include "os/os.h"
#include "unit/mappings.h"

using namespace folio;
using namespace folio_test;

namespace {

class AdvisedRunsTest : public ::testing::Test {
 protected:
  static constexpr unsigned kClusters = 16;
  static constexpr size_t kBytes = kClusters * kClusterBytes;

  void SetUp() override {
    ASSERT_NE(start_, nullptr);
    ASSERT_TRUE(os::commit(start_, kBytes));
    if (!os::prefer_huge_pages(start_, kBytes)) GTEST_SKIP() << "no huge pages";
    if (mapping_flags(start_).find(" hg ") == std::string::npos) GTEST_SKIP() << "an emulator";
    os::refuse_huge_pages(start_, kBytes);
  }
  void TearDown() override { os::unreserve(start_, kBytes); }

  char* cluster(unsigned i) const { return start_ + i * kClusterBytes; }
  void add(unsigned i) {
    ASSERT_TRUE(os::prefer_huge_pages(cluster(i), kClusterBytes));
    runs_.add(cluster(i), true);
  }
  // A letter a cluster: whether it is advised.
  std::string advised() const {
    std::string all;
    for (unsigned i = 0; i < kClusters; ++i)
      all += mapping_flags(cluster(i)).find(" hg ") != std::string::npos ? 'A' : '-';
    return all;
  }

  AdvisedRuns runs_{};
  char* const start_ = static_cast<char*>(os::reserve(kBytes, kClusterBytes));
};

TEST_F(AdvisedRunsTest, NeighboursAreOneRun) {
  for (const unsigned i : {3u, 4u, 5u, 2u, 4u}) add(i);
  EXPECT_EQ(advised(), "--AAAA----------");
  for (const unsigned i : {8u, 10u, 12u}) add(i);
  EXPECT_EQ(advised(), "--AAAA--A-A-A---");
}

TEST_F(AdvisedRunsTest, TheOldestRunIsWithdrawn) {
  for (const unsigned i : {0u, 1u, 4u, 6u, 8u}) add(i);
  EXPECT_EQ(advised(), "AA--A-A-A-------");
  add(10);
  EXPECT_EQ(advised(), "----A-A-A-A-----");
  add(5);  // between two runs: of one of them
  add(12);
  EXPECT_EQ(advised(), "------A-A-A-A---");
}

TEST_F(AdvisedRunsTest, AWithdrawnClusterTakesItsRunAlong) {
  for (const unsigned i : {0u, 1u, 2u, 6u, 7u}) add(i);
  runs_.withdraw(cluster(1));
  EXPECT_EQ(advised(), "------AA--------");
  runs_.withdraw(cluster(7));
  EXPECT_EQ(advised(), "----------------");
  add(8);
  EXPECT_EQ(advised(), "--------A-------") << "what was withdrawn is no neighbour";
}

TEST_F(AdvisedRunsTest, AClusterOfNoRunIsWithdrawnAlone) {
  add(3);
  ASSERT_TRUE(os::prefer_huge_pages(cluster(9), 2 * kClusterBytes));
  runs_.withdraw(cluster(9));
  EXPECT_EQ(advised(), "---A------A-----");
}

TEST_F(AdvisedRunsTest, OnlySoManyBegin) {
  const unsigned before = runs_begun.get();
  for (const unsigned i : {0u, 1u, 4u}) add(i);
  EXPECT_EQ(runs_begun.get(), before + 2) << "a neighbour begins none";
  runs_.withdraw(cluster(4));
  runs_.add(cluster(4), false);
  EXPECT_EQ(runs_begun.get(), before + 2) << "nor does one that was advised before";
  EXPECT_TRUE(runs_left());
  runs_begun.set(kRunsMost);
  EXPECT_FALSE(runs_left());
  runs_begun.set(before);
}

}  // namespace
