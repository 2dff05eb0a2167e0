// Children: by fork, with all threads at work; by the raw system call; by vfork and exec. A child checks and frees what
// it has inherited, allocates, starts a thread and ends.
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "objects.h"

namespace soak {

namespace {

constexpr unsigned kHangSeconds = 120, kChildrenAtOnce = 4;

Count& charged() { return counts[kParent]; }

void make_and_free(Random& random, size_t rounds) {
  Object objects[64];
  for (size_t round = 0; round < rounds; ++round) {
    for (Object& o : objects)
      o = make(random, random.one_in(64) ? big_size(random) / 4 + 1 : small_size(random), charged());
    for (Object& o : objects) {
      if (random.one_in(8)) resize(o, small_size(random), charged());
    }
    for (Object& o : objects) release(random, o, charged());
  }
}

void* child_thread(void* seed) {
  Random random(*static_cast<uint64_t*>(seed), 7);
  make_and_free(random, 1);
  return nullptr;
}

void check_or_free(Random& random, const Object& object) {
  if (random.one_in(2)) {
    release(random, object, charged());
  } else {
    verify(object);
  }
}

[[noreturn]] void be_child(Random& random, bool handlers) {
  make_and_free(random, 1);
  visit_workers_objects(random, check_or_free);
  make_and_free(random, 1);
  if (handlers && settings.with[kForkThreads]) {
    uint64_t seed = random.next();
    pthread_t thread;
    if (pthread_create(&thread, nullptr, child_thread, &seed) != 0) fail("pthread_create in a child");
    make_and_free(random, 1);
    pthread_join(thread, nullptr);
  }
  if (handlers && random.one_in(8)) {
    mallinfo2();
    malloc_trim(0);
  }
  while (failing.load()) pause_us(1000000);
  // Without the libc's handlers its locks may be held by threads that are not there.
  if (handlers && random.one_in(4)) exit(0);
  _exit(0);
}

struct Child {
  pid_t pid;  // 0: none
  const char* kind;
  uint64_t started_us;
};

uint64_t now_us() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000 + static_cast<uint64_t>(time.tv_nsec) / 1000;
}

// Whether it has ended, as it should.
bool has_ended(const Child& child) {
  int status = 0;
  const pid_t ended = waitpid(child.pid, &status, WNOHANG);
  if (ended < 0 && errno != EINTR) fail("waitpid: %s", strerror(errno));
  if (ended != child.pid) {
    if (now_us() - child.started_us > uint64_t{kHangSeconds} * 1000000) {
      fail("hang: pid %d, a child by %s, has not ended", child.pid, child.kind);
    }
    return false;
  }
  if (WIFSIGNALED(status)) fail("crash: a child by %s was ended by signal %d", child.kind, WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) fail("a child by %s ended with status %d", child.kind, WEXITSTATUS(status));
  return true;
}

void wait_for(Child& child) {
  while (child.pid != 0 && !has_ended(child)) pause_us(500);
  child.pid = 0;
}

Child start_child(Random& random) {
  const bool raw = settings.with[kRawFork] && random.one_in(8);
  const pid_t child = raw ? static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0)) : fork();
  if (child == 0) be_child(random, !raw);
  if (child < 0) fail("fork: %s", strerror(errno));
  return {child, raw ? "the raw system call" : "fork", now_us()};
}

// The child borrows this stack: nothing of it may be changed that the parent uses.
__attribute__((noinline)) void vfork_and_exec(bool allocates) {
  volatile bool wrong = false;
  const pid_t child = vfork();
  if (child == 0) {
    if (allocates) {
      for (size_t size = 1; size < size_t{1} << 20; size *= 3) {
        auto* const object = static_cast<char*>(malloc(size));
        if (object == nullptr) _exit(4);
        memset(object, 0x5A, size);
        free(object);
      }
    }
    execl("/bin/true", "true", static_cast<char*>(nullptr));
    wrong = true;
    _exit(5);
  }
  if (child < 0 || wrong) fail("vfork: %s", strerror(errno));
  Child started{child, allocates ? "vfork that allocates" : "vfork", now_us()};
  wait_for(started);
}

}  // namespace

void make_child(Random& random) {
  Child child = start_child(random);
  wait_for(child);
}

void make_children() {
  Random random(settings.seed, 102);
  static Child children[kChildrenAtOnce];
  for (;;) {
    if (should_rest()) {
      for (Child& child : children) wait_for(child);
      rest(nullptr, 0);
    }
    make_and_free(random, 1);
    if (settings.with[kVfork] && random.one_in(6)) vfork_and_exec(settings.with[kVforkMalloc] && random.one_in(2));
    for (Child& child : children) {
      if (child.pid != 0 && has_ended(child)) child.pid = 0;
    }
    Child& child = children[random.below(kChildrenAtOnce)];
    if (settings.with[kFork]) {
      wait_for(child);
      child = start_child(random);
    }
    pause_us(static_cast<unsigned>(random.below(50000)));
    counts[kParent].steps.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace soak
