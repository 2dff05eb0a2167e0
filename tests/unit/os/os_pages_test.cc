// What os.h says about physical pages: many at once, and huge ones.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <fstream>

#include "unit/child.h"
#include "unit/os/reserved.h"
#include "unit/support.h"

using namespace folio_test;

namespace {

TEST(OsPages, PurgeSomeByOneCall) {
  const Reserved space(8 * page);
  ASSERT_TRUE(os::commit(space.at(), 8 * page));
  memset(space.at(), 1, 8 * page);
  const os::PageRange ranges[] = {{space.at(), page}, {space.at() + 2 * page, 2 * page}, {space.at() + 6 * page, page}};
  const unsigned done = os::purge_some(ranges, 3);
  if (done == 0) GTEST_SKIP() << "Linux before 6.14, or a filter";
  EXPECT_EQ(done, 3u);
  for (unsigned i = 0; i < 8; ++i) {
    const bool gone = i == 0 || i == 2 || i == 3 || i == 6;
    EXPECT_EQ(space.at()[i * page + 5], gone ? 0 : 1) << i;
  }
  // A locked range in the middle: those before it are done.
  memset(space.at(), 1, 8 * page);
  if (!lock_page(space.at() + 2 * page)) GTEST_SKIP() << "nothing may be locked here";
  EXPECT_EQ(os::purge_some(ranges, 3), 1u);
  EXPECT_EQ(space.at()[5], 0);
  EXPECT_EQ(space.at()[6 * page + 5], 1);
  unlock_page(space.at() + 2 * page);
  EXPECT_EQ(os::purge_some(ranges, 3), 3u) << "that was no reason to give the call up";
}

TEST(OsPages, PurgeSomeWhereAFilterForbidsIt) {
  const int result = in_child([] {
    const Reserved space(4 * page);
    if (!os::commit(space.at(), 4 * page) || !refuse_call(SYS_process_madvise, EPERM)) return kCannot;
    memset(space.at(), 1, 4 * page);
    const os::PageRange ranges[] = {{space.at(), page}, {space.at() + 2 * page, page}};
    return os::purge_some(ranges, 2) == 0 && space.at()[0] == 1 ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

TEST(OsPages, CollapseKeepsWhatIsThereAndTheAdvice) {
  if (kEmulated) GTEST_SKIP() << "an emulator does not pass the advice on";
  const Reserved space(4 << 20, 2 << 20);
  ASSERT_NE(space.at(), nullptr);
  ASSERT_TRUE(os::commit(space.at(), 4 << 20));
  for (size_t at = 0; at < 2 << 20; at += 2 * page) space.at()[at] = 3;
  if (!os::collapse(space.at(), 2 << 20)) GTEST_SKIP() << "Linux before 6.1, or no huge pages";
  for (size_t at = 0; at < 2 << 20; at += page) ASSERT_EQ(space.at()[at], at % (2 * page) == 0 ? 3 : 0);
  EXPECT_NE(mapping_flags(space.at()).find(" nh "), std::string::npos) << "khugepaged leaves it alone";
  EXPECT_EQ(mapping_flags(space.at()), mapping_flags(space.at() + (2 << 20)));
}

TEST(OsPages, HugePagesComeWhereTheSettingSaysSo) {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string setting;
  if (kEmulated || !std::getline(file, setting)) GTEST_SKIP() << "nobody knows";
  if (setting.find("[never]") != std::string::npos) EXPECT_FALSE(os::huge_pages_come());
  // There may be none left on a full machine.
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  EXPECT_FALSE(os::huge_pages_come());
  prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

}  // namespace
