#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "unit/child.h"
#include "unit/os/reserved.h"
#include "unit/stderr_capture.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

size_t mapped_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t pages = 0;
  statm >> pages;
  return pages * page;
}

// "rw-p" and the like.
std::string mapping_rights(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from, to;
    char rights[8];
    if (sscanf(line.c_str(), "%lx-%lx %7s", &from, &to, rights) == 3 && at >= from && at < to) return rights;
  }
  return "";
}

TEST(Os, PageBytes) {
  EXPECT_EQ(os::page_bytes(), static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_GE(os::page_bytes(), kPageBytesLeast);
}

TEST(Os, ReserveAlignsAndZeroes) {
  for (size_t alignment = page; alignment <= (size_t{1} << 32); alignment *= 4) {
    const Reserved space(3 * page, alignment);
    ASSERT_NE(space.at(), nullptr) << alignment;
    EXPECT_TRUE(aligned_to(space.at(), alignment)) << alignment;
    EXPECT_TRUE(all_zero(space.at(), 3 * page));
    memset(space.at(), 1, 3 * page);
  }
}

// What limits on data and on commit count, and what mlockall fills.
TEST(Os, ReservedSpaceIsInaccessibleUntilItIsCommitted) {
  const Reserved other(page);
  char* const at = static_cast<char*>(os::reserve(8 * page, page));
  EXPECT_EQ(mapping_rights(at), "---p");
  EXPECT_TRUE(os::commit(at + 2 * page, 3 * page));
  EXPECT_EQ(mapping_rights(at + page), "---p");
  EXPECT_EQ(mapping_rights(at + 2 * page), "rw-p");
  EXPECT_EQ(mapping_rights(at + 4 * page), "rw-p");
  EXPECT_EQ(mapping_rights(at + 5 * page), "---p");
  at[2 * page] = 1;
  EXPECT_TRUE(os::commit(at, 8 * page)) << "more, and some of it again";
  EXPECT_EQ(at[2 * page], 1) << "which stays as it was";
  EXPECT_TRUE(all_zero(at + 3 * page, 5 * page));
  EXPECT_TRUE(os::protect(at, page));
  EXPECT_EQ(mapping_rights(at), "r--p");
  EXPECT_TRUE(os::unreserve(at, 8 * page));
  errno = 0;
  EXPECT_FALSE(os::commit(at + 1, page)) << "no page starts there";
  EXPECT_FALSE(os::protect(at + 1, page));
  EXPECT_EQ(errno, 0);
}

TEST(Os, ReserveTakesNoMoreAddressSpaceThanAsked) {
  constexpr size_t kAlignment = size_t{4} << 30;
  const size_t before = mapped_bytes();
  const Reserved space(kMiB, kAlignment);
  ASSERT_NE(space.at(), nullptr);
  // Some slack: an emulator's account of the pages lies in the same address space.
  EXPECT_LT(mapped_bytes(), before + 64 * kMiB) << "what was mapped to align it has gone again";
}

TEST(Os, ReservedSpaceGetsNoHugePages) {
  if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) GTEST_SKIP() << "a kernel without huge pages";
  const Reserved space(4 * kMiB, 2 * kMiB);
  const std::string flags = mapping_flags(space.at());
  if (flags.empty()) GTEST_SKIP() << "this system does not tell";
  char* const plain = static_cast<char*>(mmap(nullptr, 4 * kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  madvise(plain, 4 * kMiB, MADV_NOHUGEPAGE);
  const bool heeded = mapping_flags(plain).find(" nh ") != std::string::npos;
  munmap(plain, 4 * kMiB);
  if (!heeded) GTEST_SKIP() << "this system (an emulator) does not pass the advice on";
  EXPECT_NE(flags.find(" nh "), std::string::npos) << flags;
}

TEST(Os, ReserveFailsWithoutATrace) {
  errno = 0;
  EXPECT_EQ(os::reserve(size_t{1} << 60, page), nullptr);
  EXPECT_EQ(os::reserve(size_t{1} << 62, size_t{1} << 62), nullptr);
  EXPECT_EQ(errno, 0);
}

TEST(Os, UnreservedSpaceIsGone) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  char* const at = static_cast<char*>(os::reserve(2 * page, page));
  EXPECT_TRUE(os::commit(at, 2 * page));
  char byte;
  EXPECT_TRUE(os::peek(&byte, at, 1));
  EXPECT_TRUE(os::unreserve(at, 2 * page));
  EXPECT_FALSE(os::peek(&byte, at, 1));
  errno = 0;
  EXPECT_FALSE(os::unreserve(at + 1, page)) << "no page starts there";
  EXPECT_EQ(errno, 0);
}

TEST(Os, PurgeZeroesAndTheRestStays) {
  const Reserved space(8 * page);
  memset(space.at(), 7, 8 * page);
  EXPECT_TRUE(os::purge(space.at() + 2 * page, 3 * page));
  EXPECT_TRUE(all_zero(space.at() + 2 * page, 3 * page));
  EXPECT_EQ(space.at()[2 * page - 1], 7);
  EXPECT_EQ(space.at()[5 * page], 7);
}

TEST(Os, PurgeGivesMemoryBack) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow is resident too";
  constexpr size_t kBytes = 64 * kMiB;
  const Reserved space(kBytes);
  const size_t before = os::resident_bytes();
  memset(space.at(), 1, kBytes);
  const size_t touched = os::resident_bytes();
  EXPECT_GT(touched, before + kBytes / 2);
  EXPECT_TRUE(os::purge(space.at(), kBytes));
  EXPECT_LT(os::resident_bytes(), touched - kBytes / 2);
}

TEST(Os, PurgeOfWhatCannotGoIsRefused) {
  const Reserved space(2 * page);
  memset(space.at(), 7, 2 * page);
  errno = 0;
  EXPECT_FALSE(os::purge(space.at() + 8, page)) << "no page starts there";
  if (lock_page(space.at())) {
    errno = 0;
    EXPECT_FALSE(os::purge(space.at(), 2 * page));
    unlock_page(space.at());
  }
  EXPECT_EQ(errno, 0);
}

TEST(Os, PopulatedPagesAreResidentAndZero) {
  const Reserved space(64 * page);
  space.at()[5 * page] = 7;
  errno = 0;
  const bool done = os::populate(space.at(), 32 * page);
  unsigned char there[64];
  ASSERT_TRUE(residency(space.at(), 64 * page, there));
  if (!done || there[0] == 0) GTEST_SKIP() << "this kernel (before 5.14) cannot, or an emulator does not";
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(there[i] & 1, i < 32) << i;
  EXPECT_EQ(space.at()[5 * page], 7) << "what is there stays";
  space.at()[5 * page] = 0;
  EXPECT_TRUE(all_zero(space.at(), 64 * page));
  EXPECT_FALSE(os::populate(space.at() + 8, page)) << "no page starts there";
  EXPECT_EQ(errno, 0);
}

TEST(Os, ThreadTotalCountsThreadsThatNeverAllocated) {
  // Until it is no longer counted either: for a moment after join() it still is.
  pid_t id = 0;
  const auto join = [&](std::thread& thread) {
    thread.join();
    const std::string entry = "/proc/self/task/" + std::to_string(id);
    while (access(entry.c_str(), F_OK) == 0) sleep_ms(1);
  };
  std::atomic<bool> stop{true};
  const auto run = [&] {
    id = static_cast<pid_t>(syscall(SYS_gettid));
    while (!stop.load()) std::this_thread::yield();
  };
  std::thread first(run);  // a sanitizer may start one of its own with it
  join(first);
  const unsigned before = os::thread_total();
  if (before == 0) GTEST_SKIP() << "no /proc here";
  stop = false;
  std::thread other(run);
  EXPECT_EQ(os::thread_total(), before + 1);
  stop = true;
  join(other);
  EXPECT_EQ(os::thread_total(), before);
}

TEST(Os, CpuIsASmallNumberInEveryThread) {
  const auto most = static_cast<unsigned>(sysconf(_SC_NPROCESSORS_CONF));
  EXPECT_LT(os::cpu(), most);
  std::atomic<unsigned> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (unsigned round = 0; round < rounds(20000); ++round) wrong += os::cpu() >= most ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(Os, ClockGoesForward) {
  const uint64_t before = os::now_ms();
  // It is a coarse clock, which may lag behind for a while.
  for (unsigned i = 0; i < 1000 && os::now_ms() < before + 40; ++i) sleep_ms(10);
  const uint64_t after = os::now_ms();
  EXPECT_GE(after, before + 40);
  EXPECT_LT(after, before + 60000);
  EXPECT_GE(os::now_ms(), after);
}

TEST(Os, WaitEndsWithItsTime) {
  Atomic<uint32_t> word{7};
  const auto begin = std::chrono::steady_clock::now();
  // It may end early, by a signal.
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(60)) EXPECT_TRUE(os::wait(word, 7, 60));
  EXPECT_TRUE(os::wait(word, 7, 0));
  EXPECT_TRUE(os::wait(word, 8, 3600000)) << "the word holds another value";
}

TEST(Os, WakeEndsAWait) {
  Atomic<uint32_t> word{7};
  std::thread waker([&] {
    sleep_ms(20);
    word.store(8, order::relaxed);
    os::wake(word);
  });
  while (word.load(order::relaxed) == 7) EXPECT_TRUE(os::wait(word, 7, 3600000));
  waker.join();
}

TEST(Os, AWaitThatTheSystemRefusesSaysSo) {
  const int result = in_child([] {
    if (!refuse_call(SYS_futex, EPERM)) return kCannot;
    Atomic<uint32_t> word{7};
    return os::wait(word, 7, 1) ? kFailed : kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

struct SeenByThread {
  std::atomic<int> ready{0};
  void* argument = nullptr;
  sigset_t blocked;
};

TEST(Os, StartThreadRunsWithoutSignals) {
  static SeenByThread seen;
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ASSERT_TRUE(os::start_thread(
      [](void* argument) {
        seen.argument = argument;
        pthread_sigmask(SIG_SETMASK, nullptr, &seen.blocked);
        seen.ready.store(1, std::memory_order_release);
      },
      &seen));
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  while (seen.ready.load(std::memory_order_acquire) == 0) sleep_ms(1);
  EXPECT_EQ(seen.argument, &seen);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGPROF}) {
    EXPECT_EQ(sigismember(&seen.blocked, signal), 1) << signal;
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << "the caller's own mask is as it was";
  }
}

TEST(Os, TheFirstThreadIsKnown) {
  EXPECT_TRUE(os::in_first_thread());
  std::thread([] { EXPECT_FALSE(os::in_first_thread()); }).join();
  EXPECT_EQ(os::process_id(), static_cast<uint32_t>(getpid()));
}

TEST(Os, TheProgramIsKnown) {
  char path[512], linked[512];
  const ssize_t length = readlink("/proc/self/exe", linked, sizeof linked);
  ASSERT_GT(length, 0);
  const std::string program(linked, static_cast<size_t>(length));
  EXPECT_EQ(std::string(path, os::program_path(path, sizeof path)), program);
  EXPECT_EQ(std::string(path, os::program_path(path, 5)), program.substr(0, 5)) << "as much as fits";
}

TEST(Os, TheFirstThreadHasLeftAfterPthreadExit) {
  if (kEmulated) GTEST_SKIP() << "an emulator answers by itself what file it runs";
  if (kThreadSanitizer) GTEST_SKIP() << "it has a thread of its own";
  const int result = in_child([] {
    if (os::thread_total() == 0) return kCannot;
    if (os::first_thread_left()) return kFailed;
    std::thread([] {
      for (unsigned i = 0; i < 5000 && !os::first_thread_left(); ++i) sleep_ms(1);
      _exit(os::first_thread_left() && os::thread_total() == 2 ? kPassed : kFailed);
    }).detach();
    syscall(SYS_exit, 0);
    return kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no /proc here";
  EXPECT_EQ(result, kPassed);
}

TEST(Os, WithoutProcItIsNotKnownWhetherTheFirstThreadHasLeft) {
  char folder[] = "/tmp/folio-os-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const int result = in_child([&] {
    return chroot(folder) != 0 ? kCannot : os::first_thread_left() ? kFailed : kPassed;
  });
  rmdir(folder);
  if (result == kCannot) GTEST_SKIP() << "only root may";
  EXPECT_EQ(result, kPassed);
}

std::atomic<unsigned> ended_sum{0};

TEST(Os, ThreadEndIsReportedWithTheThreadsOwnValue) {
  static unsigned values[] = {1, 20, 300};
  std::vector<std::thread> threads;
  for (unsigned& value : values) {
    threads.emplace_back([&value] {
      unsigned unused = 4000;
      // The last value counts, once.
      const auto ended = [](void* at) { ended_sum += *static_cast<unsigned*>(at); };
      EXPECT_TRUE(os::at_thread_end(ended, &unused));
      EXPECT_TRUE(os::at_thread_end(ended, &value));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended_sum, 321u);
}

bool child_notified = false;

TEST(Os, ForkIsReportedInTheChildOnly) {
  ASSERT_TRUE(os::at_fork([] {}, [] {}, [] { child_notified = true; }));
  const pid_t child = fork();
  if (child == 0) _exit(child_notified ? 17 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 17);
  EXPECT_FALSE(child_notified);
}

TEST(Os, EnvironmentFindsWholeNames) {
  setenv("FOLIO_TEST_ONE", "value=with=signs", 1);
  setenv("FOLIO_TEST_ONE_MORE", "other", 1);
  setenv("FOLIO_TEST_EMPTY", "", 1);
  EXPECT_TRUE(os::environment_ready());
  EXPECT_STREQ(os::environment("FOLIO_TEST_ONE"), "value=with=signs");
  EXPECT_STREQ(os::environment("FOLIO_TEST_ONE_MORE"), "other");
  EXPECT_STREQ(os::environment("FOLIO_TEST_EMPTY"), "");
  EXPECT_EQ(os::environment("FOLIO_TEST_ON"), nullptr);
  EXPECT_EQ(os::environment("FOLIO_TEST"), nullptr);
  unsetenv("FOLIO_TEST_ONE");
  EXPECT_EQ(os::environment("FOLIO_TEST_ONE"), nullptr);
}

TEST(Os, WriteErrorWritesAllOfIt) {
  std::string text(200000, 'x');
  text += "end";
  StderrCapture capture;
  os::write_error(text.data(), text.size());
  os::write_error(text.data(), 0);
  EXPECT_EQ(capture.stop(), text);
}

// Puts `file` (or nothing, if -1) where standard error is, runs the body, and puts it back.
template <class Body>
void with_stderr(int file, Body&& body) {
  const int before = dup(2);
  if (file < 0) {
    close(2);
  } else {
    dup2(file, 2);
  }
  body();
  dup2(before, 2);
  close(before);
}

TEST(Os, WriteErrorGivesUpWhereNobodyReads) {
  errno = 0;
  with_stderr(-1, [] { os::write_error("lost", 4); });
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  const std::string text(4 * kMiB, 'x');
  with_stderr(ends[1], [&] { os::write_error(text.data(), text.size()); });
  EXPECT_EQ(errno, 0);
  char first = 0;
  EXPECT_EQ(read(ends[0], &first, 1), 1);
  EXPECT_EQ(first, 'x');
  close(ends[0]);
  close(ends[1]);
}

TEST(OsDeathTest, AbortIsSigabrt) { EXPECT_EXIT(os::abort_process(), testing::KilledBySignal(SIGABRT), ""); }

TEST(Os, ResidentBytesIsPlausible) {
  std::ifstream status("/proc/self/status");
  size_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) std::istringstream(line.substr(6)) >> kib;
  }
  ASSERT_NE(kib, 0u);
  const size_t resident = os::resident_bytes();
  EXPECT_GT(resident, kib * kKiB / 2);
  EXPECT_LT(resident, kib * kKiB * 2 + 64 * kMiB);
}

}  // namespace
