// Linux: the threads of os.h, by the libc's pthread functions, which it must know of; and which threads there are, by
// raw system calls.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arch/arch.h"
#include "base/atomic.h"
#include "os/linux_call.h"
#include "os/os.h"

// musl has none of these.
extern "C" {
// Where the first thread's stack was when the process began.
[[gnu::weak]] extern void* __libc_stack_end;
[[gnu::weak]] int folio_attr_setaffinity(pthread_attr_t*, size_t, const void*) asm("pthread_attr_setaffinity_np");
}

namespace folio::os {

namespace {

// As many CPUs as a kernel may have; a longer mask is not remembered.
constexpr size_t kMaskBytes = 1024;
struct Cpus {
  alignas(8) unsigned char mask[kMaskBytes];
  size_t bytes;  // 0: unknown
};
constinit Cpus first_cpus{};

// The mask of a thread, or of the caller for 0.
Cpus cpus_of(uint32_t thread) {
  Cpus cpus{};
  const long bytes = call(SYS_sched_getaffinity, thread, kMaskBytes, cpus.mask);
  cpus.bytes = failed(bytes) ? 0 : static_cast<size_t>(bytes);
  return cpus;
}

// Whether the calling thread is one that others are not to inherit from.
bool other_cpus() {
  return first_cpus.bytes != 0 && __builtin_memcmp(cpus_of(0).mask, first_cpus.mask, first_cpus.bytes) != 0;
}
bool other_class() { return call(SYS_sched_getscheduler, 0) != SCHED_OTHER; }

struct ThreadStart {
  void (*main)(void*);
  void* argument;
};
// Only one thread is ever started at a time (the housekeeper guards it), so its arguments can lie here.
constinit ThreadStart thread_start{};
using CreateThread = decltype(pthread_create);
constinit CreateThread* create_thread = pthread_create;
constinit sigset_t starters_signals{};

// Clears what ended calls have left below this one on the stack, which the libc keeps for another thread: addresses of
// purged pages would look like the program's pointers to objects (folio leaks).
FOLIO_NOINLINE void clear_ended_calls() {
  char ended[12 << 10];
  __builtin_memset(ended, 0, sizeof ended);
  asm volatile("" : : "r"(ended) : "memory");
}

// Sets class and CPUs here where the attributes could not: later, if the creator's CPU is busy.
void* run_thread(void*) {
  const ThreadStart start = thread_start;
  const sched_param ordinary{};
  if (other_class()) call(SYS_sched_setscheduler, 0, SCHED_OTHER, &ordinary);
  if (other_cpus()) call(SYS_sched_setaffinity, 0, first_cpus.bytes, first_cpus.mask);
  start.main(start.argument);
  clear_ended_calls();
  return nullptr;
}

// Sets class and CPUs only where they differ from the caller's: a sandbox may kill a process that sets them.
bool create_with_own_class(pthread_attr_t& attributes) {
  const sched_param ordinary{};
  if (other_class()) {
    pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&attributes, SCHED_OTHER);
    pthread_attr_setschedparam(&attributes, &ordinary);
  }
  if (&folio_attr_setaffinity != nullptr && other_cpus()) {
    folio_attr_setaffinity(&attributes, first_cpus.bytes, first_cpus.mask);
  }
  pthread_t thread;
  return create_thread(&thread, &attributes, run_thread, nullptr) == 0;
}

bool create_detached(bool own_class) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  // room for a program's large static TLS, which glibc takes from it
  pthread_attr_setstacksize(&attributes, size_t{256} << 10);
  pthread_t thread;
  const bool created =
      own_class ? create_with_own_class(attributes) : create_thread(&thread, &attributes, run_thread, nullptr) == 0;
  pthread_attr_destroy(&attributes);
  return created;
}

}  // namespace

namespace {

constinit Atomic<size_t> stack_least{0};  // of all threads' stacks but the first one's; 0: not known

}  // namespace

void note_stacks(const void* attributes) {
  pthread_attr_t standard;
  if (attributes == nullptr && pthread_attr_init(&standard) != 0) return;
  const auto* const theirs = attributes == nullptr ? &standard : static_cast<const pthread_attr_t*>(attributes);
  size_t bytes = 0, least = stack_least.load(order::relaxed);  // relaxed: a number
  const bool known = pthread_attr_getstacksize(theirs, &bytes) == 0;
  while (known && (least == 0 || bytes < least)) {
    if (stack_least.compare_exchange(least, bytes, order::relaxed)) break;  // relaxed: as above
  }
  if (attributes == nullptr) pthread_attr_destroy(&standard);
}

uintptr_t stack_end(const void* on_stack) {
  constexpr uintptr_t kFirstMost = uintptr_t{8} << 20;
  constexpr uintptr_t kTls = uintptr_t{64} << 10;  // more than what may lie on a stack behind the thread pointer
  const auto at = reinterpret_cast<uintptr_t>(on_stack);
  if (in_first_thread()) {
    const uintptr_t first = &__libc_stack_end == nullptr ? 0 : reinterpret_cast<uintptr_t>(__libc_stack_end);
    if (first > at && first - at <= kFirstMost) return first;
  } else {
    // To what lies at the end of the stack; not so in the first thread.
    const auto own = reinterpret_cast<uintptr_t>(arch::thread_pointer());
    if (own > at && own - at + kTls <= stack_least.load(order::relaxed)) return own;  // relaxed: as above
  }
  return (at | (page_bytes() - 1)) + 1;
}

void remember_cpus() { first_cpus = cpus_of(process_id()); }

void create_threads_by(AnyFunction* create) { create_thread = reinterpret_cast<CreateThread*>(create); }

bool start_thread(void (*main)(void*), void* argument) {
  thread_start = {main, argument};
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &starters_signals);
  const bool started = create_detached(true) || create_detached(false);
  pthread_sigmask(SIG_SETMASK, &starters_signals, nullptr);
  return started;
}

namespace {

constinit Atomic<unsigned> enders{0};  // of end_process: a housekeeper may have left before, and another one come

void* end_process(void*) {
  constexpr unsigned kTriesMost = 1000;
  Atomic<uint32_t> nobody_wakes{0};
  enders.fetch_add(1, order::relaxed);  // relaxed: a number
  // These and the first thread, which has left and counts.
  const auto others = [] { return thread_total() > 1 + enders.load(order::relaxed); };  // relaxed: as above
  for (unsigned i = 0; i < kTriesMost && others(); ++i) wait(nobody_wakes, 0, 1);
  enders.fetch_sub(1, order::relaxed);  // relaxed: as above
  pthread_sigmask(SIG_SETMASK, &starters_signals, nullptr);
  return nullptr;
}

}  // namespace

void leave_to_ordinary_thread() {
  pthread_attr_t attributes;
  pthread_t thread;
  bool created = pthread_attr_init(&attributes) == 0;
  if (created) {
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    created = create_thread(&thread, &attributes, end_process, nullptr) == 0;
    pthread_attr_destroy(&attributes);
  }
  if (!created) pthread_sigmask(SIG_SETMASK, &starters_signals, nullptr);
}

namespace {

// 0: none yet; 1: cannot be had; else the key + 2.
constinit Atomic<unsigned> end_key{0};

}  // namespace

void prepare_thread_end(void (*ended)(void*)) {
  if (end_key.load(order::relaxed) != 0) return;  // relaxed: only whether there is one
  pthread_key_t key;
  const unsigned made = pthread_key_create(&key, ended) == 0 ? key + 2 : 1;
  unsigned none = 0;
  // [thread-end-key] release: publishes the key; the loser of a race deletes its own. unseen: what the key is lies in
  // the libc.
  if (!end_key.compare_exchange(none, made, order::release) && made != 1) pthread_key_delete(key);
}

bool at_thread_end(void (*ended)(void*), void* value) {
  prepare_thread_end(ended);
  // [thread-end-key] acquire: pairs with prepare_thread_end. unseen: as there
  const unsigned key_word = end_key.load(order::acquire);
  return key_word != 1 && pthread_setspecific(key_word - 2, value) == 0;
}

unsigned thread_total() {
  struct stat tasks {};
  // The kernel adds one link for each thread to the folder's own two.
  if (failed(call(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &tasks, 0)) || tasks.st_nlink < 3) return 0;
  return static_cast<unsigned>(tasks.st_nlink - 2);
}

uint32_t thread_id() { return static_cast<uint32_t>(call(SYS_gettid)); }

bool thread_exists(uint32_t id) { return call(SYS_tgkill, call(SYS_getpid), id, 0) != -ESRCH; }

bool in_first_thread() { return call(SYS_gettid) == call(SYS_getpid); }

bool first_thread_left() {
  char target[8];  // as much of it as fits
  // Without /proc, or with that of another PID namespace, all of it is missing.
  return call(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", target, sizeof target) == -ENOENT && thread_total() != 0;
}

}  // namespace folio::os
