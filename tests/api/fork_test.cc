// fork, vfork and posix_spawn at any moment from a process whose other threads allocate.
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

#include <atomic>
#include <string>
#include <thread>

#include "support.h"

extern char **environ;

using namespace folio_test;

namespace {

constexpr int kChildSeconds = 200;

// Threads that allocate and free everything in turn, until the object dies.
class BusyThreads {
 public:
  explicit BusyThreads(int count, bool stdio = false) {
    for (int i = 0; i < count; i++) threads_.emplace_back([this, i, stdio] { run(static_cast<unsigned>(i), stdio); });
  }
  ~BusyThreads() {
    stop_ = true;
    for (std::thread &thread : threads_) thread.join();
  }

 private:
  void run(unsigned seed, bool stdio) {
    FILE *sink = stdio ? fopen("/dev/null", "w") : nullptr;
    void *objects[64] = {};
    for (unsigned step = seed; !stop_; step++) {
      void *&object = objects[step * 7 % 64];
      free(object);
      size_t bytes = step % 512 == 0 ? 1500000 : step % 32 == 0 ? 30000 : step * 13 % 900;
      object = opaque(step % 3 == 0 ? calloc(1, bytes) : malloc(bytes));
      if (step % 5 == 0) object = realloc(object, bytes * 2 + 1);
      if (sink != nullptr) fprintf(sink, "%u\n", step);
      if (step % 4096 == 0) folio_collect();
    }
    for (void *object : objects) free(object);
    if (sink != nullptr) fclose(sink);
  }

  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// What a child does at once: ten thousand allocations of all sizes, then some that outlive the freeing.
int child_work() {
  void *objects[100] = {};
  for (unsigned i = 0; i < 10000; i++) {
    void *&object = objects[i % 100];
    size_t bytes = i % 1000 == 0 ? 2500000 : i % 50 == 0 ? 40000 : i % 2000;
    if (object != nullptr && *static_cast<unsigned char *>(object) != (i - 100) % 251) return 1;
    free(object);
    object = opaque(malloc(bytes + 1));
    if (object == nullptr) return 2;
    *static_cast<unsigned char *>(object) = static_cast<unsigned char>(i % 251);
  }
  for (void *object : objects) free(object);
  folio_collect();
  return 0;
}

// Forks, runs `child` there and returns its wait status. A child that hangs is ended by its own alarm.
template <class Child>
int status_of_fork(Child child) {
  pid_t pid = fork();
  if (pid == 0) {
    alarm(kChildSeconds);
    _exit(child());
  }
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

void random_pause(unsigned *state) {
  *state = *state * 1103515245 + 12345;
  usleep(*state / 65536 % 3000);
}

TEST(Fork, AtAnyMomentFromEightThreads) {
  BusyThreads busy(8);
  unsigned state = 42;
  for (int i = 0; i < 200; i++) {
    random_pause(&state);
    ASSERT_EQ(status_of_fork(child_work), 0) << "fork " << i;
  }
}

// The threads that did not come along: their caches serve the child, and what they held at that moment holds up nobody.
int child_takes_over() {
  folio_stats before = {}, after = {};
  before.struct_size = after.struct_size = sizeof before;
  if (!folio_stats_get(&before) || before.threads != 1) return 10;
  if (child_work() != 0) return 11;
  if (!folio_stats_get(&after) || after.threads != 1) return 12;
  if (after.busy_sections != before.busy_sections) return 13;  // nobody is there who could be in one
  return after.cached <= size_t{256} << 10 ? 0 : 14;
}

TEST(Fork, ChildTakesOverWhatThreadsHeld) {
  BusyThreads busy(8);
  unsigned state = 45;
  for (int i = 0; i < 100; i++) {
    random_pause(&state);
    ASSERT_EQ(status_of_fork(child_takes_over), 0) << "fork " << i;
  }
}

// stdio's locks are held at the moment of the fork; the libc resets them in the child, and both must write.
TEST(Fork, WhileThreadsHoldStdioLocks) {
  BusyThreads busy(4, true);
  unsigned state = 43;
  for (int i = 0; i < 60; i++) {
    random_pause(&state);
    int status = status_of_fork([] {
      FILE *sink = fopen("/dev/null", "w");
      if (sink == nullptr) return 3;
      for (int line = 0; line < 1000; line++) fprintf(sink, "%d\n", line);
      fclose(sink);
      return child_work();
    });
    ASSERT_EQ(status, 0) << "fork " << i;
  }
}

TEST(Fork, ChildStartsThreads) {
  BusyThreads busy(4);
  unsigned state = 44;
  for (int i = 0; i < 40; i++) {
    random_pause(&state);
    int status = status_of_fork([] {
      std::atomic<int> bad{0};
      std::thread other([&bad] { bad += child_work(); });
      bad += child_work();
      other.join();
      return bad.load();
    });
    ASSERT_EQ(status, 0) << "fork " << i;
  }
}

TEST(Fork, ChildForksAgain) {
  BusyThreads busy(3);
  for (int i = 0; i < 20; i++) {
    int status = status_of_fork([] {
      int inner = status_of_fork([] { return status_of_fork(child_work) == 0 ? child_work() : 5; });
      return inner == 0 ? child_work() : 4;
    });
    ASSERT_EQ(status, 0) << "fork " << i;
  }
}

// Objects of before the fork belong to both; each frees its own copy.
TEST(Fork, ChildFreesWhatTheParentAllocated) {
  std::vector<void *> objects;
  for (unsigned i = 0; i < 5000; i++) {
    size_t bytes = i % 100 == 0 ? 100000 : i % 1000;
    objects.push_back(opaque(malloc(bytes)));
    fill(objects.back(), bytes, i);
  }
  auto check_and_free = [&objects] {
    for (unsigned i = 0; i < objects.size(); i++) {
      size_t bytes = i % 100 == 0 ? 100000 : i % 1000;
      if (first_difference(objects[i], bytes, i) != bytes) return 1;
      free(objects[i]);
    }
    return child_work();
  };
  EXPECT_EQ(status_of_fork(check_and_free), 0);
  EXPECT_EQ(status_of_fork(check_and_free), 0);
  EXPECT_EQ(check_and_free(), 0);
}

TEST(Fork, ChildEndsByExit) {
  BusyThreads busy(4);
  for (int i = 0; i < 40; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      alarm(kChildSeconds);
      exit(child_work());
    }
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
  }
}

// Several threads may fork at once: each has its own.
thread_local void *before_fork, *after_fork;

// Handlers of a program's own may allocate and free.
TEST(Fork, AtforkHandlersAllocate) {
  ASSERT_EQ(pthread_atfork([] { before_fork = opaque(malloc(100000)); }, [] { free(before_fork); },
                           [] {
                             free(before_fork);
                             after_fork = opaque(malloc(5000));
                           }),
            0);
  BusyThreads busy(3);
  for (int i = 0; i < 30; i++) {
    ASSERT_EQ(status_of_fork([] {
                free(after_fork);
                return child_work();
              }),
              0);
  }
}

// Threads fork, too.
TEST(Fork, FromSeveralThreadsAtOnce) {
  BusyThreads busy(2);
  std::atomic<int> bad{0};
  std::vector<std::thread> forkers;
  for (int t = 0; t < 3; t++) {
    forkers.emplace_back([&bad] {
      for (int i = 0; i < 20; i++) bad += status_of_fork(child_work) != 0;
    });
  }
  for (std::thread &forker : forkers) forker.join();
  EXPECT_EQ(bad, 0);
}

// The child of vfork shares the parent's memory until exec.
TEST(Vfork, ThenExec) {
  BusyThreads busy(4);
  char program[] = "/bin/true";
  char *const arguments[] = {program, nullptr};
  for (int i = 0; i < 50; i++) {
    pid_t pid = vfork();
    if (pid == 0) {
      execv(program, arguments);
      _exit(127);
    }
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
    ASSERT_EQ(child_work(), 0);
  }
}

TEST(PosixSpawn, FromManyThreads) {
  BusyThreads busy(4);
  char program[] = "/bin/sh", option[] = "-c", command[] = "x=$(seq 100); exit 3";
  char *const arguments[] = {program, option, command, nullptr};
  for (int i = 0; i < 30; i++) {
    pid_t pid = 0;
    ASSERT_EQ(posix_spawn(&pid, program, nullptr, nullptr, arguments, environ), 0);
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(WEXITSTATUS(status), 3);
  }
  FILE *pipe = popen("seq 1000 | tail -1", "r");
  ASSERT_NE(pipe, nullptr);
  char line[20] = "";
  EXPECT_NE(fgets(line, sizeof line, pipe), nullptr);
  EXPECT_STREQ(line, "1000\n");
  EXPECT_EQ(pclose(pipe), 0);
}

}  // namespace
