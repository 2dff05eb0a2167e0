#include "arch/arch.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "unit/support.h"

using namespace folio;

namespace {

TEST(Arch, RawCallsReturnTheErrorAndLeaveErrnoAlone) {
  errno = 77;
  EXPECT_EQ(arch::syscall6(SYS_getpid), getpid());
  EXPECT_EQ(arch::syscall6(SYS_close, -1), -EBADF);
  EXPECT_EQ(errno, 77);
}

TEST(Arch, RawCallsPassSixArguments) {
  // pread64(2) uses four, mmap(2) all six: a page of this very file, at an offset, at a place of our choice.
  const long page = sysconf(_SC_PAGESIZE);
  const long at = arch::syscall6(SYS_mmap, 0, 2 * page, 3, 0x22, -1, 0);
  ASSERT_GT(at, 0);
  const long file = arch::syscall6(SYS_openat, -100, reinterpret_cast<long>("/proc/self/exe"), 0);
  ASSERT_GE(file, 0);
  const long mapped = arch::syscall6(SYS_mmap, at, page, 1, 0x12, file, page);  // MAP_PRIVATE | MAP_FIXED
  ASSERT_EQ(mapped, at);
  std::vector<char> expected(static_cast<size_t>(page));
  ASSERT_EQ(arch::syscall6(SYS_pread64, file, reinterpret_cast<long>(expected.data()), page, page), page);
  EXPECT_EQ(memcmp(expected.data(), reinterpret_cast<void*>(mapped), expected.size()), 0);
  arch::syscall6(SYS_munmap, at, 2 * page);
  arch::syscall6(SYS_close, file);
}

TEST(Arch, ThreadPointerIsTheThreadsOwnAndStays) {
  char* const mine = arch::thread_pointer();
  EXPECT_EQ(arch::thread_pointer(), mine);
  char* other = nullptr;
  std::thread([&] { other = arch::thread_pointer(); }).join();
  EXPECT_NE(other, nullptr);
  EXPECT_NE(other, mine);
}

TEST(Arch, AddressesOfThisProcessHaveAtMostTheStatedBits) {
  int on_stack = 0;
  const auto bits = [](const void* address) { return reinterpret_cast<uintptr_t>(address) >> arch::kAddressBits; };
  EXPECT_EQ(bits(&on_stack), 0u);
  EXPECT_EQ(bits(reinterpret_cast<const void*>(&folio::options)), 0u);
}

TEST(Arch, ATransactionCommitsOrSaysWhyNot) {
  if (!arch::Transaction::has()) GTEST_SKIP() << "this processor has no transactions";
  // It may abort for any reason at any time, so only what it says is checked, not that it ever commits.
  int value = 0;
  const unsigned status = arch::Transaction::begin();
  if (status == arch::Transaction::kStarted) {
    value = 1;
    arch::Transaction::commit();
    EXPECT_EQ(value, 1);
  } else {
    EXPECT_EQ(value, 0);
    EXPECT_NE(status, arch::Transaction::kStarted);
  }
}

TEST(Arch, HintsDoNothing) {
  arch::pause();
  arch::prefetch(nullptr);  // a prefetch never faults
  int value = 3;
  arch::prefetch(&value);
  EXPECT_EQ(value, 3);
}

}  // namespace
