// Many objects are guarded while threads allocate, resize, pass on and free all sizes, the profile is switched on and
// off, the statistics are asked, and the process forks.
#include "insight/guards.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/seam.h"
#include "stress/support.h"

namespace stress {
namespace {

// Before main, so that no thread reads an option while it is written.
const bool configured = [] {
  folio::options.decay = 20;
  return true;
}();

bool guarded() {
  constexpr uint64_t kInterval = 4000;
  static const bool started = configured && folio::guards_start(kInterval) && folio::seam_guard();
  return started;
}

uint64_t guarded_frees() { return folio::guard_frees.get(); }

TEST(Stress, GuardedObjects) {
  ASSERT_TRUE(guarded());
  constexpr uint64_t kFreesLeast = 2000;
  Mailboxes mailboxes(64);
  const Deadline deadline(4);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      Worker worker(i + 1, mailboxes, 60000);
      while (!deadline.over(guarded_frees() > kFreesLeast)) worker.step();
    });
  }
  uint64_t most = 0;
  for (unsigned n = 0; !deadline.over(); ++n) {
    n % 2 == 0 ? folio::seam_close(20000) : folio::seam_open();
    most = std::max(most, folio::guard_stats().objects);
    EXPECT_LE(folio::guard_stats().bytes, most << 16);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::thread& t : threads) t.join();
  folio::seam_open();
  empty(mailboxes);
  printf("%lu guarded objects were freed, %lu live at once\n", guarded_frees(), most);
  EXPECT_GT(guarded_frees(), kFreesLeast);
  EXPECT_EQ(eventually([] { return folio::guard_stats().objects == 0 ? "" : "guarded objects are lost"; }), "");
  expect_quiet_and_sound();
}

TEST(Stress, GuardedObjectsInChildren) {
  if (kAddressSanitized) GTEST_SKIP() << "AddressSanitizer does not survive the fork of a process with threads";
  ASSERT_TRUE(guarded());
  constexpr unsigned kForks = kSanitized ? 10 : 60;
  Mailboxes mailboxes(64);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Worker worker(i + 50, mailboxes, 60000);
      while (!stop.load(std::memory_order_relaxed)) worker.step();
    });
  }
  Worker mine(7, mailboxes);
  for (unsigned n = 0; n < kForks && !HasFailure(); ++n) {
    for (unsigned k = 0; k < 50; ++k) mine.step();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(200);  // a child that hangs dies of it
      const uint64_t before = guarded_frees();
      for (unsigned k = 0; k < 2000; ++k) mine.step();
      _exit(failures.load() == 0 && guarded_frees() > before ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "child " << n << " ended with status " << status;
  }
  stop = true;
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failures.load(), 0u);
  empty(mailboxes);
}

}  // namespace
}  // namespace stress
