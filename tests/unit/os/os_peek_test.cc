// Memory that may be unmapped at any time, and threads that may be gone: what os.h can tell of them.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "unit/child.h"
#include "unit/os/reserved.h"
#include "unit/support.h"

using namespace folio_test;

namespace {

TEST(Os, PeekReadsWhatIsMappedAndOnlyThat) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  Reserved space(3 * page);
  memset(space.at(), 42, 3 * page);
  space.unmap(2 * page, page);
  std::vector<char> copy(2 * page);
  ASSERT_TRUE(os::peek(copy.data(), space.at(), 2 * page));
  EXPECT_EQ(copy, std::vector<char>(2 * page, 42));
  errno = 0;
  EXPECT_FALSE(os::peek(copy.data(), space.at() + 2 * page, 1));
  EXPECT_FALSE(os::peek(copy.data(), space.at() + page + 1, page)) << "the last byte is not mapped";
  EXPECT_FALSE(os::peek(copy.data(), nullptr, 8));
  EXPECT_FALSE(os::peek(copy.data(), reinterpret_cast<void*>(uintptr_t{0xffff800000000000}), 8));
  ASSERT_EQ(mprotect(space.at(), page, PROT_NONE), 0);
  EXPECT_FALSE(os::peek(copy.data(), space.at(), 1));
  EXPECT_EQ(errno, 0);
}

// A fork must not meet pages that a peek has pinned.
TEST(Os, NoPeekGoesOnInAFork) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  os::hold_peeks();
  os::hold_peeks();  // two threads fork
  EXPECT_FALSE(can_peek());
  os::resume_peeks(false);
  EXPECT_FALSE(can_peek());
  os::resume_peeks(false);
  EXPECT_TRUE(can_peek());
  os::hold_peeks();
  os::resume_peeks(true);
  EXPECT_TRUE(can_peek());
}

// A raw fork runs no handler: its child must not wait for the end of forks that its parent's threads had begun.
TEST(Os, PeeksGoOnInTheChildOfARawForkBesideAnother) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  os::hold_peeks();
  const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    const bool at_once = can_peek();
    os::hold_peeks();
    const bool meanwhile = can_peek();
    os::resume_peeks(false);
    _exit(at_once && !meanwhile && can_peek() ? 0 : 1);
  }
  os::resume_peeks(false);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  // A handler of the child's that starts a thread which forks: its count ends after the child's own began at 0.
  os::hold_peeks();
  os::resume_peeks(true);
  os::resume_peeks(false);
  EXPECT_TRUE(can_peek());
}

// Signals end a wait early. They must not end the whole of it.
TEST(Os, AForkWaitsForPeeksThroughSignals) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  constexpr size_t kRange = 24 * kMiB;
  Reserved space(kRange);
  memset(space.at(), 42, kRange);
  std::vector<char> copy(kRange * os::kPeekMost);
  os::PeekRange ranges[os::kPeekMost];
  for (size_t i = 0; i < os::kPeekMost; ++i) ranges[i] = {copy.data() + i * kRange, space.at(), kRange};
  const volatile char& first = copy.front();
  const volatile char& last = copy.back();
  struct sigaction ignore {};
  ignore.sa_handler = [](int) {};
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGALRM, &ignore, &before), 0);
  std::thread reader([&] {
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, nullptr);
    while (first == 0) os::peek_some(ranges, os::kPeekMost);
  });
  while (first == 0) sched_yield();
  const itimerval often = {{0, 100}, {0, 100}}, never = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  const uint64_t began = os::now_ms();
  os::hold_peeks();
  const bool ended = last != 0;
  const uint64_t took = os::now_ms() - began;
  setitimer(ITIMER_REAL, &never, nullptr);
  EXPECT_TRUE(ended || took >= 100) << took << " ms";
  os::resume_peeks(false);
  reader.join();
  sigaction(SIGALRM, &before, nullptr);
}

// A signal's handler that forks may have interrupted a peek of its own thread, which cannot end meanwhile.
TEST(Os, AForkDoesNotWaitForAPeekOfItsOwnThread) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  constexpr size_t kRange = 4 * kMiB;
  constexpr uint64_t kLongMs = 90;
  Reserved space(kRange);
  memset(space.at(), 42, kRange);
  std::vector<char> copy(kRange);
  static std::atomic<unsigned> forks{0}, longs{0};
  struct sigaction forking {};
  forking.sa_handler = [](int) {
    const uint64_t began = os::now_ms();
    os::hold_peeks();
    os::resume_peeks(false);
    ++forks;
    if (os::now_ms() - began >= kLongMs) ++longs;
  };
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGALRM, &forking, &before), 0);
  const itimerval often = {{0, 5000}, {0, 5000}}, never = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  while (forks < 20) os::peek(copy.data(), space.at(), kRange);
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_LT(longs, 10u) << "of " << forks;
}

TEST(Os, PeeksGoOnAfterForksInParentAndChild) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  std::atomic<bool> stop{false};
  std::atomic<unsigned> peeked{0};
  std::thread reader([&] {
    while (!stop) peeked += can_peek() ? 1 : 0;
  });
  for (unsigned i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(can_peek() ? 0 : 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "fork " << i;
  }
  const unsigned before = peeked;
  for (unsigned i = 0; i < 5000 && peeked == before; ++i) usleep(1000);
  EXPECT_GT(peeked, before);
  stop = true;
  reader.join();
}

// A thread counts in two places, far apart, first in one, then in the other. In a fork's child the second must not be
// ahead of the first. (Where peeks and forks meet, one of ten children has memory of two moments.)
TEST(Os, AChildHasMemoryOfOneMoment) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  constexpr size_t kRead = 4 * kMiB;
  Reserved space(48 * kMiB);
  memset(space.at(), 1, 48 * kMiB);
  auto* const first = reinterpret_cast<std::atomic<uint64_t>*>(space.at() + 64 * kKiB);
  auto* const second = reinterpret_cast<std::atomic<uint64_t>*>(space.at() + 47 * kMiB);
  *first = *second = 0;
  std::atomic<bool> stop{false};
  std::thread counting([&] {
    for (uint64_t i = 1; !stop; ++i) {
      *first = i;
      *second = i;
    }
  });
  std::thread reading([&] {
    std::vector<char> copy(kRead);
    while (!stop) os::peek(copy.data(), space.at(), kRead);
  });
  unsigned torn = 0;
  for (unsigned i = 0; i < rounds(100); ++i) {
    os::hold_peeks();
    const pid_t child = fork();
    if (child == 0) _exit(*second > *first ? 1 : 0);
    os::resume_peeks(false);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    torn += status != 0 ? 1 : 0;
  }
  stop = true;
  counting.join();
  reading.join();
  EXPECT_EQ(torn, 0u);
}

TEST(Os, PeekSaysWhatWasCopiedOfSeveral) {
  if (!can_peek()) GTEST_SKIP() << kCannotPeek;
  Reserved space(2 * page);
  memset(space.at(), 42, 2 * page);
  space.unmap(page, page);
  char first[16], second[16];
  const os::PeekRange good = {first, space.at(), 16}, bad = {second, space.at() + page, 16};
  const os::PeekRange cut = {second, space.at() + page - 8, 16};
  const auto copied = [](os::PeekRange a, os::PeekRange b) {
    const os::PeekRange both[] = {a, b};
    return os::peek_some(both, 2);
  };
  errno = 0;
  EXPECT_EQ(copied(good, good), 2u);
  EXPECT_EQ(first[15], 42);
  EXPECT_EQ(copied(good, bad), 1u);
  EXPECT_EQ(copied(good, cut), 1u);
  EXPECT_EQ(copied(bad, good), 0u);
  EXPECT_EQ(os::peek_some(&good, 1), 1u);
  EXPECT_EQ(os::peek_some(&good, 0), 0u);
  EXPECT_EQ(errno, 0);
}

TEST(Os, CopiesWhatIsMapped) {
  Reserved space(4 * page);
  memset(space.at(), 42, 3 * page);
  space.unmap(3 * page, page);
  std::vector<char> copy(3 * page);
  errno = 0;
  ASSERT_EQ(os::copy_if_mapped(copy.data(), space.at(), 3 * page), os::Answer::kYes);
  EXPECT_EQ(copy, std::vector<char>(3 * page, 42));
  EXPECT_EQ(os::copy_if_mapped(copy.data(), space.at() + 3 * page - 8, 8), os::Answer::kYes);
  EXPECT_EQ(os::copy_if_mapped(copy.data(), space.at() + 3 * page, 8), os::Answer::kNotThere);
  EXPECT_EQ(os::copy_if_mapped(copy.data(), space.at() + page + 8, 2 * page), os::Answer::kNotThere) << "its last page";
  EXPECT_NE(os::copy_if_mapped(copy.data(), nullptr, 8), os::Answer::kYes);
  EXPECT_EQ(errno, 0);
}

TEST(Os, ComparesAWordThatMayBeUnmapped) {
  Reserved space(2 * page);
  auto** words = reinterpret_cast<void**>(space.at());
  void* const value = space.at() + 5;
  words[0] = value;
  words[1] = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(value) ^ (uint64_t{1} << 40));
  words[page / sizeof(void*)] = value;
  space.unmap(page, page);
  errno = 0;
  EXPECT_EQ(os::word_is(words, value), os::Answer::kYes);
  EXPECT_EQ(os::word_is(words, space.at() + 6), os::Answer::kOther);
  EXPECT_EQ(os::word_is(words + 1, value), os::Answer::kOther) << "its upper half";
  EXPECT_EQ(os::word_is(words + page / sizeof(void*), value), os::Answer::kNotThere) << "not mapped";
  EXPECT_EQ(os::word_is(nullptr, nullptr), os::Answer::kNotThere);
  EXPECT_EQ(errno, 0);
}

TEST(Os, ThreadsHaveNumbersWhileTheyLive) {
  const uint32_t mine = os::thread_id();
  EXPECT_EQ(mine, os::thread_id());
  EXPECT_TRUE(os::thread_exists(mine));
  uint32_t other = 0;
  std::thread([&] {
    other = os::thread_id();
    EXPECT_TRUE(os::thread_exists(other));
    EXPECT_TRUE(os::thread_exists(mine));
  }).join();
  EXPECT_NE(other, mine);
  for (int i = 0; i < 10000 && os::thread_exists(other); ++i) usleep(1000);  // the join may be a moment before its end
  EXPECT_FALSE(os::thread_exists(other));
}

void expect_whole_stack(const char* local) {
  const auto at = reinterpret_cast<uintptr_t>(local), end = os::stack_end(local);
  EXPECT_GT(end, at);
  EXPECT_LE(end - at, size_t{8} << 20);
  for (uintptr_t page_at = at; page_at < end; page_at += page) {
    EXPECT_NE(os::word_is(reinterpret_cast<void* const*>(page_at & ~uintptr_t{7}), nullptr), os::Answer::kNotThere);
  }
}

// On a stack that the program has made nothing is known beyond the page, also where it lies just below what belongs to
// the thread: others may unmap what follows.
TEST(Os, AStackEndsWhereItIsKnownTo) {
  os::note_stacks(nullptr);
  char local = 0;
  expect_whole_stack(&local);
  Reserved made(4 * page);
  EXPECT_EQ(os::stack_end(made.at() + 5), reinterpret_cast<uintptr_t>(made.at()) + page);
  std::thread([] {
    char own = 0;
    expect_whole_stack(&own);
  }).join();
}

// A stack that the program has made may lie just below a small one of a thread's own.
TEST(Os, NoThreadsStackIsTakenForLargerThanTheSmallest) {
  const auto known = [](uintptr_t at) { return os::stack_end(reinterpret_cast<const void*>(at)) - at > page; };
  const auto in_thread = [known] {
    bool result = false;
    std::thread([known, &result] {
      char own[512 << 10];
      asm volatile("" : : "r"(own) : "memory");
      result = known(reinterpret_cast<uintptr_t>(own));
    }).join();
    return result;
  };
  EXPECT_EQ(in_child([&] {
              os::note_stacks(nullptr);
              const bool before = in_thread();
              pthread_attr_t small;
              pthread_attr_init(&small);
              pthread_attr_setstacksize(&small, 256 << 10);
              os::note_stacks(&small);
              pthread_attr_destroy(&small);
              os::note_stacks(nullptr);  // a larger one changes nothing
              return before && !in_thread() ? kPassed : kFailed;
            }),
            kPassed);
}

}  // namespace
