// Threads start and end all the time, and the process forks while they do.
#include <sys/wait.h>
#include <unistd.h>

#include "stress/support.h"

namespace stress {
namespace {

const bool configured = [] {
  folio::options.decay = 20;
  folio::options.dirty_floor = 1;
  return true;
}();

TEST(Stress, ThreadsComeAndGo) {
  ASSERT_TRUE(configured);
  Mailboxes mailboxes(128);
  const Deadline deadline(5);
  constexpr unsigned kLivesLeast = 20;
  std::atomic<unsigned> lives{0};
  std::vector<std::thread> parents;
  for (unsigned i = 0; i < 4; ++i) {
    parents.emplace_back([&, i] {
      for (unsigned n = 0; !deadline.over(lives > kLivesLeast); ++n) {
        std::thread child([&] {
          Worker worker(i * 1000003 + n + 1, mailboxes);
          for (unsigned k = worker.chance(300); k != 0; --k) worker.step();
        });
        // Some objects are freed by a thread that has never allocated.
        std::thread heir([&] { Worker::release(mailboxes.swap(n, Object())); });
        child.join();
        heir.join();
        lives += 2;
      }
    });
  }
  for (std::thread& t : parents) t.join();
  empty(mailboxes);
  printf("%u threads lived; %lu KiB of metadata\n", lives.load(), folio::totals().metadata >> 10);
  EXPECT_GT(lives.load(), kLivesLeast);
  // Caches of ended threads are used again: their number follows the threads alive at once, not all that ever lived.
  EXPECT_LT(folio::totals().metadata, size_t{16} << 20);
  expect_quiet_and_sound();
}

// What a child can do: its only thread came out of a process whose other threads were anywhere in malloc and free.
int live_in_child(unsigned seed) {
  alarm(200);  // a child that hangs dies of it
  Mailboxes mailboxes(16);
  {
    Worker worker(seed, mailboxes);
    for (unsigned n = 0; n < 300; ++n) worker.step();
    folio_collect();
    if (!kThreadSanitized) {  // which does not let such a child start threads
      std::thread([&] {
        Worker other(seed + 1, mailboxes);
        for (unsigned n = 0; n < 100; ++n) other.step();
      }).join();
    }
  }
  empty(mailboxes);
  return failures.load() == 0 ? 0 : 1;
}

TEST(Stress, ForkInALoop) {
  // Its own malloc, which the test's containers use, locks and does not unlock in the child: seen waiting in
  // SizeClassAllocator64::GetFromAllocator.
  if (kAddressSanitized) GTEST_SKIP() << "AddressSanitizer does not survive the fork of a process with threads";
  constexpr unsigned kForks = kSanitized ? 15 : 120;
  Mailboxes mailboxes(64);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Worker worker(i + 50, mailboxes);
      while (!stop.load(std::memory_order_relaxed)) worker.step();
    });
  }
  Worker mine(7, mailboxes);
  for (unsigned n = 0; n < kForks && !HasFailure(); ++n) {
    for (unsigned k = 0; k < 50; ++k) mine.step();
    const pid_t child = fork();
    EXPECT_GE(child, 0);
    if (child < 0) break;
    if (child == 0) _exit(live_in_child(n + 1));
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "child " << n << " ended with status " << status;
  }
  stop = true;
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(eventually(bins_are_sound), "");
  EXPECT_EQ(failures.load(), 0u);
  empty(mailboxes);
}

}  // namespace
}  // namespace stress
