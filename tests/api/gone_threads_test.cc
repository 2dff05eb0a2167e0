// Threads whose end nobody tells: by the raw system call, or with their first malloc in the last round of destructors.
// Their thread-local storage becomes another thread's, or data of the program's, and neither the child of a fork nor
// statistics may take it for theirs, nor may a third thread's cache end with that one. And threads that a handler of
// the program's starts in the child of a fork.
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>

#include "support.h"

using namespace folio_test;

namespace {

constexpr int kChildSeconds = 200;
constexpr size_t kStackBytes = size_t{256} << 10;
constexpr unsigned kObjects = 200;

void allocate_and_free() {
  void* objects[kObjects];
  for (void*& object : objects) object = opaque(malloc(48));
  for (void* object : objects) free(object);
}

// ---- Ends that are not told ----

pthread_key_t late_key;
thread_local unsigned late_rounds;

void late_destructor(void* value) {
  if (++late_rounds < PTHREAD_DESTRUCTOR_ITERATIONS) {
    pthread_setspecific(late_key, value);
  } else {
    allocate_and_free();
  }
}

void* end_late(void*) {
  pthread_setspecific(late_key, &late_key);
  return nullptr;
}

void* end_raw(void*) {
  allocate_and_free();
  syscall(SYS_exit, 0);
  return nullptr;
}

struct End {
  const char* name;
  void* (*main)(void*);
};
constexpr End kEnds[] = {{"late", end_late}, {"raw", end_raw}};

class GoneThread : public ::testing::TestWithParam<End> {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(pthread_key_create(&late_key, late_destructor), 0); }
  static void TearDownTestSuite() { pthread_key_delete(late_key); }

  static char* new_stack() {
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(stack, MAP_FAILED);
    return static_cast<char*>(stack);
  }
  // Runs and joins a thread, on a stack of the program's own if one is given.
  static void run(void* (*main)(void*), char* stack = nullptr) {
    pthread_attr_t attributes;
    ASSERT_EQ(pthread_attr_init(&attributes), 0);
    if (stack != nullptr) {
      ASSERT_EQ(pthread_attr_setstack(&attributes, stack, kStackBytes), 0);
    }
    pthread_t thread;
    ASSERT_EQ(pthread_create(&thread, &attributes, main, nullptr), 0);
    pthread_attr_destroy(&attributes);
    ASSERT_EQ(pthread_join(thread, nullptr), 0);
  }
  void end_unreported(char* stack = nullptr) { run(GetParam().main, stack); }
};

INSTANTIATE_TEST_SUITE_P(Ends, GoneThread, ::testing::ValuesIn(kEnds),
                         [](const auto& parameter) { return parameter.param.name; });

// What a child of a fork allocates: each address once, each whole.
int allocates_well() {
  constexpr unsigned kMany = 3000;
  std::set<void*> seen;
  for (unsigned i = 0; i < kMany; i++) {
    void* object = opaque(malloc(48));
    if (object == nullptr || !aligned_to(object, 16) || malloc_usable_size(object) < 48) return 1;
    if (!seen.insert(object).second) return 2;
    fill(object, 48, i);
  }
  return 0;
}

int forks_well() {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(kChildSeconds);
    _exit(allocates_well());
  }
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

void ask_statistics() {
  const struct mallinfo2 info = mallinfo2();
  EXPECT_LT(info.uordblks, size_t{1} << 40);
  folio_stats stats = {};
  stats.struct_size = sizeof stats;
  EXPECT_TRUE(folio_stats_get(&stats));
  EXPECT_LT(stats.cached, size_t{1} << 40);
  FILE* sink = fopen("/dev/null", "w");
  ASSERT_NE(sink, nullptr);
  EXPECT_EQ(malloc_info(0, sink), 0);
  fclose(sink);
}

std::atomic<int> fork_status;

void* work_and_fork(void*) {
  allocate_and_free();
  fork_status = forks_well();
  return nullptr;
}

// The next thread gets the same stack, and so the same thread-local storage.
TEST_P(GoneThread, AnotherOnTheSameStackForks) {
  for (int i = 0; i < 5; i++) {
    end_unreported();
    run(work_and_fork);
    ASSERT_EQ(fork_status, 0) << i;
  }
  char* const stack = new_stack();
  end_unreported(stack);
  run(work_and_fork, stack);
  EXPECT_EQ(fork_status, 0);
  munmap(stack, kStackBytes);
}

// Its owner lives, in a thread that does not fork, and goes on with what it has.
TEST_P(GoneThread, AnotherOnTheSameStackWorksWhileMainForks) {
  end_unreported();
  std::atomic<bool> stop{false}, started{false};
  std::thread worker([&] {
    while (!stop) {
      allocate_and_free();
      started = true;
    }
  });
  while (!started) std::this_thread::yield();
  for (int i = 0; i < 20; i++) ASSERT_EQ(forks_well(), 0) << i;
  stop = true;
  worker.join();
}

TEST_P(GoneThread, ItsStackBecomesData) {
  char* const stack = new_stack();
  end_unreported(stack);
  for (const int byte : {0x41, 0xff, 0}) {
    memset(stack, byte, kStackBytes);
    EXPECT_EQ(forks_well(), 0);
    ask_statistics();
  }
  // Addresses of objects and of the stack itself, as real data has them.
  for (size_t i = 0; i < kStackBytes / sizeof(void*); i++) reinterpret_cast<void**>(stack)[i] = stack + i;
  EXPECT_EQ(forks_well(), 0);
  ask_statistics();
  munmap(stack, kStackBytes);
  EXPECT_EQ(forks_well(), 0);
  ask_statistics();
}

// Caches of threads that are gone serve others once their storage is: 2000 of them must not cost 2000 caches.
TEST_P(GoneThread, ItsCacheServesOthers) {
  auto metadata = [] {
    folio_stats stats = {};
    stats.struct_size = sizeof stats;
    EXPECT_TRUE(folio_stats_get(&stats));
    return stats.metadata;
  };
  char* const stack = new_stack();
  auto some = [&](int count) {
    for (int i = 0; i < count; i++) {
      end_unreported(stack);
      memset(stack, 0, kStackBytes);
    }
  };
  some(20);
  const size_t before = metadata();
  some(2000);
  // Magazines are lost with each of these threads, at most one for the bin that it used, and those that it had empty.
  EXPECT_LE(metadata(), before + 2000 * 16 * size_t{512});
  munmap(stack, kStackBytes);
}

// ---- A thread that did not call at all, where the libc hands its predecessor's cache to its destructor ----

std::atomic<bool> silent_runs, silent_may_end;
std::atomic<pthread_t> last_thread;

void* end_raw_and_tell(void*) {
  last_thread = pthread_self();
  return end_raw(nullptr);
}

// Neither allocates nor frees. (glibc keeps a thread's specific values where it has left by the raw system call, and
// the next one on that stack starts with them.)
void* be_silent(void*) {
  last_thread = pthread_self();
  silent_runs = true;
  while (!silent_may_end) usleep(100);
  return nullptr;
}

size_t threads_with_a_cache() {
  folio_stats stats = {};
  stats.struct_size = sizeof stats;
  EXPECT_TRUE(folio_stats_get(&stats));
  return stats.threads;
}

// By the time the silent one ends, the cache may be a third thread's.
TEST(SilentThread, DoesNotEndItsPredecessorsCache) {
  pthread_t gone, silent;
  ASSERT_EQ(pthread_create(&gone, nullptr, end_raw_and_tell, nullptr), 0);
  ASSERT_EQ(pthread_join(gone, nullptr), 0);
  silent_runs = silent_may_end = false;
  ASSERT_EQ(pthread_create(&silent, nullptr, be_silent, nullptr), 0);
  while (!silent_runs) usleep(100);
  // Its storage is another's now, so its cache is found by those who look for one.
  std::atomic<bool> stop{false};
  std::atomic<unsigned> working{0};
  std::vector<std::thread> others;
  constexpr unsigned kOthers = 8;
  for (unsigned i = 0; i < kOthers; i++) {
    others.emplace_back([&] {
      allocate_and_free();
      ++working;
      while (!stop) allocate_and_free();
    });
  }
  while (working != kOthers) usleep(100);
  const size_t before = threads_with_a_cache();
  silent_may_end = true;
  ASSERT_EQ(pthread_join(silent, nullptr), 0);
  EXPECT_EQ(threads_with_a_cache(), before);
  stop = true;
  for (std::thread& other : others) other.join();
  if (last_thread != gone) GTEST_SKIP() << "the libc gave the silent thread another stack";
}

// ---- Statistics beside ordinary ends ----

TEST(Statistics, WhileThreadsEndAndTheirStacksBecomeData) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> makers;
  for (int m = 0; m < 3; m++) {
    makers.emplace_back([&] {
      void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(stack, MAP_FAILED);
      pthread_attr_t attributes;
      ASSERT_EQ(pthread_attr_init(&attributes), 0);
      ASSERT_EQ(pthread_attr_setstack(&attributes, stack, kStackBytes), 0);
      while (!stop) {
        pthread_t thread;
        auto main = [](void*) -> void* {
          allocate_and_free();
          return nullptr;
        };
        ASSERT_EQ(pthread_create(&thread, &attributes, main, nullptr), 0);
        ASSERT_EQ(pthread_join(thread, nullptr), 0);
        memset(stack, 0x41, kStackBytes);
      }
      pthread_attr_destroy(&attributes);
      munmap(stack, kStackBytes);
    });
  }
  for (int i = 0; i < 2000; i++) {
    const struct mallinfo2 info = mallinfo2();
    ASSERT_LT(info.uordblks, size_t{1} << 40);
  }
  stop = true;
  for (std::thread& maker : makers) maker.join();
}

// Two thousand threads: each is looked at once for all bins, so the system calls do not multiply.
TEST(Statistics, OfTwoThousandThreads) {
  constexpr unsigned kThreads = 2000;
  pthread_barrier_t ready, end;
  std::vector<pthread_t> threads;
  static pthread_barrier_t* barriers[2];
  barriers[0] = &ready, barriers[1] = &end;
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 65536), 0);
  ASSERT_EQ(pthread_barrier_init(&ready, nullptr, kThreads + 1), 0);
  ASSERT_EQ(pthread_barrier_init(&end, nullptr, kThreads + 1), 0);
  const size_t cached = mallinfo2().fsmblks;
  for (unsigned i = 0; i < kThreads; i++) {
    pthread_t thread;
    auto main = [](void*) -> void* {
      free(opaque(malloc(1000)));  // a bin that a thread does not cache at once,
      free(opaque(malloc(100)));   // and one that it does
      pthread_barrier_wait(barriers[0]);
      pthread_barrier_wait(barriers[1]);
      return nullptr;
    };
    ASSERT_EQ(pthread_create(&thread, &attributes, main, nullptr), 0);
    threads.push_back(thread);
  }
  pthread_barrier_wait(&ready);
  EXPECT_GE(mallinfo2().fsmblks, cached + size_t{kThreads} * 100);
  pthread_barrier_wait(&end);
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

// From now on this system call of the process ends so. False if there are no filters here.
bool filter_call(unsigned number, unsigned action) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, action),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

bool filter_peeks(unsigned action) { return filter_call(SYS_process_vm_readv, action); }

constexpr int kNoFilters = 77;

// The exit status of a child that does so; its threads end with it.
int status_in_child(int (*body)()) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(kChildSeconds);
    _exit(body());
  }
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Where the kernel must not say what threads hold, statistics know less; nothing else changes, also in a child.
TEST(Statistics, WhereTheCopyIsRefused) {
  const int status = status_in_child([] {
    if (!filter_peeks(SECCOMP_RET_ERRNO | EPERM)) return kNoFilters;
    std::atomic<bool> stop{false};
    std::vector<std::thread> busy;
    for (int t = 0; t < 3; t++) {
      busy.emplace_back([&stop] {
        while (!stop) std::thread(allocate_and_free).join();
      });
    }
    int bad = 0;
    for (int i = 0; i < 300; i++) bad += mallinfo2().uordblks >= size_t{1} << 40;
    for (int i = 0; i < 20; i++) bad += forks_well() != 0;
    stop = true;
    for (std::thread& thread : busy) thread.join();
    return bad == 0 ? 0 : 1;
  });
  if (status == kNoFilters) GTEST_SKIP() << "no filters of system calls here";
  EXPECT_EQ(status, 0);
}

#if defined(__x86_64__)
// The moment between the look at where a thread's cursors lie and their copy: the thread ends there, in the ordinary
// way, and its stack becomes data.
char* ending_stack;
pthread_t ending_thread;
std::atomic<bool> ending_may_end, ending_works, ending_done;

void end_before_the_copy(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* to = reinterpret_cast<const iovec*>(registers[REG_RSI]);
  const auto* from = reinterpret_cast<const iovec*>(registers[REG_R10]);
  greg_t copied = 0;
  for (greg_t i = 0; i < registers[REG_RDX]; i++) {
    const auto* start = static_cast<const char*>(from[i].iov_base);
    if (start >= ending_stack && start < ending_stack + kStackBytes && !ending_done) {
      ending_may_end = true;
      pthread_join(ending_thread, nullptr);
      memset(ending_stack, 0x41, kStackBytes);
      ending_done = true;
    }
    memcpy(to[i].iov_base, from[i].iov_base, to[i].iov_len);
    copied += static_cast<greg_t>(to[i].iov_len);
  }
  registers[REG_RAX] = copied;
}

int statistics_while_a_thread_ends() {
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = end_before_the_copy;
  sigaction(SIGSYS, &action, nullptr);
  ending_stack =
      static_cast<char*>(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, ending_stack, kStackBytes);
  auto main = [](void*) -> void* {
    allocate_and_free();
    ending_works = true;
    while (!ending_may_end) usleep(100);
    return nullptr;
  };
  if (pthread_create(&ending_thread, &attributes, main, nullptr) != 0) return 2;
  while (!ending_works) usleep(100);
  int result = 3;
  std::thread([&] {
    result = !filter_peeks(SECCOMP_RET_TRAP) ? kNoFilters : mallinfo2().uordblks >= size_t{1} << 40 ? 4 : 0;
  }).join();
  return result != 0 || ending_done ? result : 5;
}

TEST(Statistics, WhenAThreadEndsBeforeItsCursorsAreCopied) {
  const int status = status_in_child(statistics_while_a_thread_ends);
  if (status == kNoFilters) GTEST_SKIP() << "no filters of system calls here";
  EXPECT_EQ(status, 0);
}
#endif

// ---- A thread that a handler starts in the child ----

std::atomic<bool> handler_starts, handler_thread_works, handler_thread_bad;
pthread_t handler_thread;

// Objects come and go; each keeps its pattern.
bool churn(unsigned seed, std::atomic<bool>* working) {
  constexpr unsigned kHeld = 200, kSteps = 60000;
  static thread_local void* held[kHeld];
  unsigned state = seed;
  for (unsigned step = 0; step < kSteps; step++) {
    state = state * 1103515245 + 12345;
    const unsigned i = (state >> 16) % kHeld;
    const size_t bytes = i % 50 == 0 ? 50000 : 48;
    if (held[i] != nullptr) {
      if (first_difference(held[i], bytes, seed + i) != bytes) return false;
      free(held[i]);
      held[i] = nullptr;
    } else {
      held[i] = opaque(malloc(bytes));
      fill(held[i], bytes, seed + i);
    }
    if (step == 2000 && working != nullptr) *working = true;
  }
  for (void*& object : held) {
    free(object);
    object = nullptr;
  }
  return true;
}

void start_in_child() {
  if (!handler_starts) return;
  pthread_create(
      &handler_thread, nullptr,
      [](void*) -> void* {
        if (!churn(12345, &handler_thread_works)) handler_thread_bad = true;
        return nullptr;
      },
      nullptr);
  while (!handler_thread_works && !handler_thread_bad) usleep(100);
}

// Before any library's constructor, so that in the child this handler runs before Folio's.
void register_handler() { pthread_atfork(nullptr, nullptr, start_in_child); }
[[gnu::section(".preinit_array"), gnu::used]] void (*const register_first)() = register_handler;

// 0, or what is wrong.
int children_start_threads() {
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (unsigned t = 0; t < 3; t++) {
    busy.emplace_back([&stop, t] {
      while (!stop) churn(t, nullptr);
    });
  }
  int status = 0;
  for (int i = 0; i < 20 && status == 0; i++) {
    handler_starts = true;
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(kChildSeconds);
      const bool good = churn(777, nullptr);
      pthread_join(handler_thread, nullptr);
      _exit(good && !handler_thread_bad ? allocates_well() : 9);
    }
    handler_starts = false;
    if (waitpid(pid, &status, 0) != pid) status = -1;
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
  return status == 0 ? 0 : 1;
}

TEST(ForkHandler, StartsAThreadInTheChild) { EXPECT_EQ(children_start_threads(), 0); }

// Where /proc is not there, the system does not say how many threads run: each that had a cache is asked for.
TEST(ForkHandler, StartsAThreadInTheChildWithoutProc) {
  const int status = status_in_child(
      [] { return filter_call(SYS_newfstatat, SECCOMP_RET_ERRNO | ENOENT) ? children_start_threads() : kNoFilters; });
  if (status == kNoFilters) GTEST_SKIP() << "no filters of system calls here";
  EXPECT_EQ(status, 0);
}

}  // namespace
