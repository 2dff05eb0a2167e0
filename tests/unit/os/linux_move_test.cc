#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "unit/child.h"
#include "unit/os/reserved.h"
#include "unit/support.h"

using namespace folio_test;

namespace {

// What move_pages said.
struct Moved {
  size_t bytes;
  bool destroyed;
};
Moved move_pages(const Reserved& from, const Reserved& to, size_t bytes, size_t used, size_t step) {
  os::PageRange hole = {to.at(), 1};
  const size_t moved = os::move_pages(from.at(), to.at(), bytes, used, step, &hole);
  return {moved, hole.bytes != 0};
}

TEST(LinuxMove, ContentsMove) {
  constexpr size_t kPages = 300;
  const Reserved from(kPages * page), to(kPages * page);
  for (size_t i = 0; i < kPages * page; ++i) from.at()[i] = static_cast<char>(i / 7);
  memset(to.at(), 99, kPages * page);
  const Moved moved = move_pages(from, to, kPages * page, kPages * page, 10 * page);
  EXPECT_FALSE(moved.destroyed);
  for (size_t i = 0; i < kPages * page; ++i) ASSERT_EQ(to.at()[i], static_cast<char>(i / 7)) << i;
  if (moved.bytes == 0) GTEST_SKIP() << "this kernel (before 5.7, or an emulator) cannot: it was copied";
  ASSERT_EQ(moved.bytes, kPages * page);
}

TEST(LinuxMove, WhereTheSourceIsSeveralMappings) {
  // Moved pages keep their old place in their mapping's numbering, so that what was moved once is a mapping of its own.
  constexpr size_t kStep = 4;
  const Reserved first(kStep * page), from(3 * kStep * page), to(3 * kStep * page);
  memset(first.at(), 1, kStep * page);
  if (move_pages(first, from, kStep * page, kStep * page, kStep * page).bytes == 0) GTEST_SKIP() << "it cannot";
  memset(from.at() + kStep * page, 2, kStep * page);
  memset(from.at() + 2 * kStep * page, 3, kStep * page);
  const Moved moved = move_pages(from, to, 3 * kStep * page, 3 * kStep * page, kStep * page);
  EXPECT_EQ(moved.bytes, 3 * kStep * page);
  EXPECT_FALSE(moved.destroyed);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(to.at()[i * kStep * page], static_cast<char>(i + 1));
    EXPECT_EQ(to.at()[(i + 1) * kStep * page - 1], static_cast<char>(i + 1));
  }
}

// What a program may do inside its object, each in the middle of a step.
TEST(LinuxMove, ProtectionsMoveAlong) {
  constexpr size_t kPages = 64;
  const Reserved from(kPages * page), to(kPages * page);
  for (size_t i = 0; i < kPages; ++i) memset(from.at() + i * page, static_cast<int>(i + 1), page);
  ASSERT_EQ(mprotect(from.at() + 5 * page, page, PROT_NONE), 0);
  ASSERT_EQ(mprotect(from.at() + 40 * page, 3 * page, PROT_READ), 0);
  ASSERT_EQ(mprotect(from.at() + 63 * page, page, PROT_NONE), 0);
  const Moved moved = move_pages(from, to, kPages * page, kPages * page, 16 * page);
  if (moved.bytes == 0) GTEST_SKIP() << "this kernel cannot";
  EXPECT_EQ(moved.bytes, kPages * page);
  for (const size_t i : {size_t{4}, size_t{5}, size_t{6}, size_t{63}}) {
    EXPECT_EQ(mapping_flags(to.at() + i * page).find(" rd ") != std::string::npos, i % 2 == 0) << i;
  }
  ASSERT_EQ(mprotect(to.at(), kPages * page, PROT_READ | PROT_WRITE), 0);
  for (size_t i = 0; i < kPages; ++i) ASSERT_EQ(to.at()[i * page], static_cast<char>(i + 1)) << i;
}

// A private file mapping reads as the file again where its pages were moved from, and what is sealed behind it cannot
// be moved: Linux moves the first and then fails, if they are one call's.
TEST(LinuxMove, WhatIsMappedBeforeSomethingSealed) {
  for (const int protection : {PROT_READ | PROT_WRITE, PROT_READ}) {
    const int result = in_child([&] {
      constexpr size_t kPages = 64;
      constexpr long kMseal = 462;  // Linux 6.10
      const Reserved from(kPages * page), to(kPages * page);
      for (size_t i = 0; i < kPages; ++i) memset(from.at() + i * page, static_cast<int>(i + 1), page);
      const int file = memfd_create("file", 0);
      if (file < 0 || ftruncate(file, static_cast<off_t>(4 * page)) != 0) return kCannot;
      char* const inside = from.at() + 20 * page;
      const void* const at = mmap(inside, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0);
      if (at != inside) return kCannot;
      memset(inside, 99, 4 * page);
      if (mprotect(inside, 4 * page, protection) != 0) return kCannot;
      if (syscall(kMseal, from.at() + 28 * page, 2 * page, 0) != 0) return kCannot;
      const Moved moved = move_pages(from, to, kPages * page, kPages * page, 16 * page);
      if (moved.destroyed || moved.bytes == kPages * page) return kFailed;
      for (size_t i = 0; i < kPages; ++i) {
        const int expected = i >= 20 && i < 24 ? 99 : static_cast<int>(i + 1);
        if (to.at()[i * page] != static_cast<char>(expected)) return kFailed;
      }
      return kPassed;
    });
    if (result == kCannot) GTEST_SKIP() << "this kernel cannot";
    EXPECT_EQ(result, kPassed);
  }
}

// A handler that answers each page once would wait for ever for one that asks again.
TEST(LinuxMove, NoPageIsAskedForByAMove) {
  const int result = in_child([] {
    constexpr size_t kPages = 64;
    const Reserved from(kPages * page), to(kPages * page);
    memset(from.at(), 7, 32 * page);
    const int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
    uffdio_api api{};
    api.api = UFFD_API;
    uffdio_register all{};
    all.range = {reinterpret_cast<uintptr_t>(from.at()), kPages * page};
    all.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0 || ioctl(fd, UFFDIO_REGISTER, &all) != 0) return kCannot;
    alarm(20);
    if (move_pages(from, to, kPages * page, kPages * page, 16 * page).bytes != kPages * page) return kCannot;
    return to.at()[31 * page] == 7 && to.at()[32 * page] == 0 ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "this kernel cannot";
  EXPECT_EQ(result, kPassed);
}

// To find where a mapping ends a page behind it is borrowed.
TEST(LinuxMove, NothingIsLeftBehindTheSource) {
  constexpr size_t kPages = 8;
  Reserved from((kPages + 2) * page);
  const Reserved to(kPages * page);
  memset(from.at(), 1, (kPages + 2) * page);
  from.unmap(kPages * page, page);
  EXPECT_FALSE(move_pages(from, to, kPages * page, kPages * page, 4 * page).destroyed);
  EXPECT_EQ(to.at()[kPages * page - 1], 1);
  char* const behind = from.at() + kPages * page;
  EXPECT_EQ(mmap(behind, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), behind) << "a hint: it is still mapped";
  munmap(behind, page);
  EXPECT_EQ(from.at()[(kPages + 1) * page], 1);
}

TEST(LinuxMove, NothingIsMovedOfUnmappedSpace) {
  Reserved from(4 * page), to(4 * page);
  from.unmap(0, 4 * page);
  errno = 0;
  const Moved moved = move_pages(from, to, 4 * page, 0, page);
  EXPECT_EQ(moved.bytes, 0u);
  EXPECT_FALSE(moved.destroyed);
  EXPECT_EQ(errno, 0);
  EXPECT_TRUE(all_zero(to.at(), 4 * page));
}

// mremap in this process, for good, as a kernel that fails at some step: memcpy, in a handler of the filter's signal.
constexpr size_t kStep = 4, kSteps = 6;
struct Kernel {
  size_t longest = kStep * page;     // more in one call is several mappings
  int looks_say = 0;                 // where set: the error of each call that resizes
  const char* fails_from = nullptr;  // the source of the step that cannot be moved
  bool back_fails = false;           // nor can any step after it
  bool unmaps = true;                // the target first, as before Linux 6.17
  size_t takes = 0;                  // pages of the hole that another thread's mmap gets
  char* taken = nullptr;
  bool failed = false;
  size_t calls = 0;
};
Kernel kernel;

// The filter lets through what the handler does.
long mremap_as_kernel(char* from, size_t bytes, size_t new_bytes, char* to) {
  if (new_bytes != bytes) return kernel.looks_say != 0 ? -kernel.looks_say : bytes > kernel.longest ? -EFAULT : -ENOMEM;
  ++kernel.calls;
  auto move = [](char* source, char* target, size_t n) {
    if (mmap(target, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) return;
    memcpy(target, source, n);
    madvise(source, n, MADV_DONTNEED);
  };
  if (bytes > kernel.longest || from == kernel.fails_from || (kernel.failed && kernel.back_fails)) {
    kernel.failed = true;
    if (kernel.unmaps) munmap(to, bytes);
    if (kernel.takes != 0 && kernel.taken == nullptr) {
      kernel.taken = static_cast<char*>(mmap(to, kernel.takes * page, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
      if (kernel.taken == to) memset(to, 0x5a, kernel.takes * page);
    }
    return -EFAULT;
  }
  move(from, to, bytes);
  return reinterpret_cast<long>(to);
}

bool as_kernel() {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t*, void* context) {
    mcontext_t& m = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    m.gregs[REG_RAX] =
        mremap_as_kernel(reinterpret_cast<char*>(m.gregs[REG_RDI]), static_cast<size_t>(m.gregs[REG_RSI]),
                         static_cast<size_t>(m.gregs[REG_RDX]), reinterpret_cast<char*>(m.gregs[REG_R8]));
#else
    m.regs[0] = static_cast<uint64_t>(
        mremap_as_kernel(reinterpret_cast<char*>(m.regs[0]), m.regs[1], m.regs[2], reinterpret_cast<char*>(m.regs[4])));
#endif
  };
  return sigaction(SIGSYS, &action, nullptr) == 0 && filter_call(SYS_mremap, SECCOMP_RET_TRAP);
}

bool filled(const char* at) {
  for (size_t i = 0; i < kSteps * kStep; ++i) {
    // A page in five is zero.
    if (at[i * page] != static_cast<char>(i % 5) || at[(i + 1) * page - 1] != static_cast<char>(i % 5)) return false;
  }
  return true;
}

// Moves kSteps steps, the kernel's way, over a target that was used before. The result where all bytes are at the
// target, or destroyed and all at the source still.
int moves(size_t expected, bool destroyed, bool (*then)(const Reserved& to) = nullptr) {
  const int result = in_child([&] {
    const Reserved from(kSteps * kStep * page), to(kSteps * kStep * page);
    for (size_t i = 0; i < kSteps * kStep; ++i) memset(from.at() + i * page, static_cast<int>(i % 5), page);
    memset(to.at(), 99, kSteps * kStep * page);
    if (kernel.fails_from != nullptr) kernel.fails_from = from.at() + 2 * kStep * page;
    if (!as_kernel()) return kCannot;
    const size_t all = kSteps * kStep * page;
    const Moved moved = move_pages(from, to, all, all, kStep * page);
    if (moved.bytes != expected * page || moved.destroyed != destroyed) return kFailed;
    if (!filled(destroyed ? from.at() : to.at())) return kFailed;
    return then == nullptr || then(to) ? kPassed : kFailed;
  });
  return result;
}

class LinuxMoveBy : public ::testing::Test {
 protected:
  void SetUp() override {
    if (in_child([] { return filter_call(SYS_mremap, SECCOMP_RET_TRAP) ? kPassed : kCannot; }) != kPassed) {
      GTEST_SKIP() << "no filters here";
    }
    kernel = {};
  }
  static constexpr char kSomewhere = 0;
};

TEST_F(LinuxMoveBy, NoCallIsLongerThanAMapping) {
  kernel.takes = kStep;
  EXPECT_EQ(moves(kSteps * kStep, false, [](const Reserved&) { return kernel.taken == nullptr; }), kPassed);
}

TEST_F(LinuxMoveBy, AHoleIsFilledAndTheRestCopied) {
  kernel.fails_from = &kSomewhere;
  EXPECT_EQ(moves(2 * kStep, false), kPassed);
}

TEST_F(LinuxMoveBy, WhatTheKernelLeftMappedIsCopiedTo) {
  kernel.fails_from = &kSomewhere;
  kernel.unmaps = false;
  EXPECT_EQ(moves(2 * kStep, false), kPassed);
}

TEST_F(LinuxMoveBy, OneMappingIsOneCall) {
  kernel.longest = kSteps * kStep * page;
  EXPECT_EQ(moves(kSteps * kStep, false, [](const Reserved&) { return kernel.calls == 1; }), kPassed);
}

TEST_F(LinuxMoveBy, PagesOfAMappingOfTheirOwn) {
  kernel.longest = page;
  EXPECT_EQ(moves(kSteps * kStep, false), kPassed);
}

TEST_F(LinuxMoveBy, WhereNothingMayBeMovedAllIsCopied) {
  kernel.looks_say = EPERM;
  EXPECT_EQ(moves(0, false), kPassed);
}

TEST_F(LinuxMoveBy, WhereAnotherMappingGotTheHoleAllGoesBack) {
  kernel.fails_from = &kSomewhere;
  kernel.takes = 1;
  EXPECT_EQ(moves(0, true, [](const Reserved&) { return kernel.taken[0] == 0x5a && kernel.taken[page - 1] == 0x5a; }),
            kPassed);
}

TEST_F(LinuxMoveBy, WhatCannotGoBackAsPagesIsCopiedBack) {
  kernel.fails_from = &kSomewhere;
  kernel.takes = 1;
  kernel.back_fails = true;
  EXPECT_EQ(moves(0, true, [](const Reserved&) { return kernel.taken[0] == 0x5a; }), kPassed);
}

}  // namespace
