// The end of the process while threads allocate, and what runs then: atexit, destructors, statistics.
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <string>
#include <thread>

#include "support.h"

using namespace folio_test;

namespace {

// Never joined: they allocate until the process is gone.
void start_busy_threads(int count) {
  for (int i = 0; i < count; i++) {
    std::thread([i] {
      void *objects[32] = {};
      for (unsigned step = static_cast<unsigned>(i);; step++) {
        void *&object = objects[step % 32];
        free(object);
        object = opaque(malloc(step % 700 == 0 ? 1200000 : step * 31 % 4000));
      }
    }).detach();
  }
}

void work_at_exit() {
  std::vector<std::string> texts;
  for (size_t i = 0; i < 1000; i++) texts.emplace_back(i, 'x');
  free(opaque(malloc(3000000)));
  folio_collect();
  for (const std::string &text : texts) {
    if (text != std::string(text.size(), 'x')) _exit(9);
  }
}

// Runs `action` in a child that ends by itself; returns the wait status.
template <class Action>
int status_of(Action action) {
  pid_t pid = fork();
  if (pid == 0) {
    alarm(200);
    action();
    _exit(99);
  }
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

TEST(Exit, WhileThreadsAllocate) {
  for (int i = 0; i < 50; i++) {
    int status = status_of([i] {
      start_busy_threads(4);
      atexit(work_at_exit);
      usleep(static_cast<useconds_t>(i) * 100);
      exit(7);
    });
    ASSERT_EQ(status, 7 << 8) << i;
  }
}

TEST(Exit, QuickExitAndUnderscoreExit) {
  EXPECT_EQ(status_of([] {
              start_busy_threads(3);
              at_quick_exit(work_at_exit);
              quick_exit(5);
            }),
            5 << 8);
  EXPECT_EQ(status_of([] {
              start_busy_threads(3);
              usleep(1000);
              _exit(6);
            }),
            6 << 8);
}

// From another thread than main.
TEST(Exit, FromAnyThread) {
  for (int i = 0; i < 20; i++) {
    int status = status_of([] {
      start_busy_threads(2);
      std::thread([] {
        atexit(work_at_exit);
        exit(4);
      }).join();
    });
    ASSERT_EQ(status, 4 << 8);
  }
}

// exec from a process whose threads are in the allocator.
TEST(Exec, WhileThreadsAllocate) {
  for (int i = 0; i < 30; i++) {
    int status = status_of([] {
      start_busy_threads(4);
      usleep(500);
      execl("/bin/sh", "sh", "-c", "exit 3", nullptr);
    });
    ASSERT_EQ(status, 3 << 8);
  }
}

TEST(Signal, EndsBusyThreads) {
  for (int i = 0; i < 10; i++) {
    int status = status_of([] {
      start_busy_threads(4);
      usleep(500);
      kill(getpid(), SIGTERM);
      pause();
    });
    ASSERT_TRUE(WIFSIGNALED(status));
    ASSERT_EQ(WTERMSIG(status), SIGTERM);
  }
}

}  // namespace
