// stall [--limit-ms N]: "it never waits", tested on the library that is preloaded: one thread of a process is stopped
// at many instants in the middle of malloc and free, and each time the other threads must finish a fixed amount of
// work.
//
//   interrupts   a tracer stops the victim at hundreds of random moments
//   steps        the victim goes through slow paths one machine instruction at a time; it rests at each instruction of
//                the library when it comes there for the first time, and at every 200th after that
//
// Exit status 0: nobody waited; 1: somebody did; 77: this machine does not let processes trace each other.
#include <dlfcn.h>
#include <elf.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <thread>
#include <unordered_set>

namespace {

constexpr int kSkipped = 77;
constexpr unsigned kWorkers = 3, kInterrupts = 400;
constexpr unsigned kPairs = 2000, kPairsWhileStepping = 150;
constexpr unsigned kRestEvery = 200;
constexpr uint64_t kStepsMost = 2000000;

// What tracer and tracee share. Words that threads sleep on are futexes.
struct Control {
  std::atomic<int> victim{0};
  std::atomic<uint32_t> round{0};  // workers do one round of work each time it changes
  std::atomic<uint32_t> done{0};   // workers that finished it
  std::atomic<uint32_t> pairs{kPairs};
  std::atomic<uint32_t> stepping{0};
  std::atomic<uint32_t> stepped{0};  // the victim is through
  std::atomic<void*> mailbox[64] = {};
};
Control* control;

// Not FUTEX_PRIVATE: two processes use them.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int ms) {
  const timespec limit{ms / 1000, ms % 1000 * 1000000L};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}
void futex_wake(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, 1000, nullptr, nullptr, 0); }

// ---- The process that is watched ----

size_t random_size(std::minstd_rand& random) {
  const unsigned kind = random() % 64;
  return kind < 48 ? 1 + random() % 512 : kind < 60 ? 1 + random() % 20000 : 1 + random() % 300000;
}

// One malloc and one free; what is freed was often allocated by another thread.
void pair(std::minstd_rand& random) {
  const size_t size = random_size(random);
  auto* object = static_cast<char*>(malloc(size));
  if (object == nullptr) abort();
  object[0] = object[size - 1] = 1;
  free(control->mailbox[random() % 64].exchange(object, std::memory_order_acq_rel));
}

// Many of one size, then all back: magazines run dry and over.
void burst(std::minstd_rand& random, unsigned count) {
  void* objects[300];
  const size_t size = random_size(random);
  if (size * count > (8 << 20)) count = 4;
  for (unsigned i = 0; i < count; ++i) objects[i] = malloc(size);
  for (unsigned i = 0; i < count; ++i) free(objects[i]);
}

void work(unsigned seed) {
  std::minstd_rand random(seed);
  uint32_t seen = 0;
  for (;;) {
    while (control->round.load(std::memory_order_acquire) == seen) futex_wait(control->round, seen, 1000);
    ++seen;
    const unsigned pairs = control->pairs.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < pairs; ++i) pair(random);
    burst(random, 130);
    if (control->done.fetch_add(1, std::memory_order_acq_rel) + 1 == kWorkers) futex_wake(control->done);
  }
}

void step_through() {
  std::minstd_rand random(7);
  for (unsigned i = 0; i < 200; ++i) pair(random);
  syscall(SYS_tgkill, getpid(), gettid(), SIGTRAP);  // from here on by single steps
  for (unsigned i = 0; i < 5; ++i) burst(random, 70);
  for (unsigned i = 0; i < 100; ++i) pair(random);
  // Little to clear and copy: what one instruction does to many bytes is a step for each of them. A huge object is
  // moved by the kernel.
  free(realloc(calloc(1, 40 << 10), 100 << 10));
  free(realloc(calloc(1, 9 << 20), 20 << 20));
  for (unsigned i = 0; i < 50; ++i) pair(random);
  control->stepped.store(1, std::memory_order_release);
}

[[noreturn]] void be_victim() {
  using Collect = size_t (*)();
  const auto collect = reinterpret_cast<Collect>(dlsym(RTLD_DEFAULT, "folio_collect"));
  control->victim.store(gettid(), std::memory_order_release);
  std::minstd_rand random(1);
  for (;;) {
    for (unsigned i = 0; i < 50; ++i) pair(random);
    burst(random, 50 + random() % 250);
    if (collect != nullptr && random() % 16 == 0) collect();
    if (control->stepping.exchange(0, std::memory_order_acquire) != 0) step_through();
  }
}

[[noreturn]] void be_watched() {
  for (unsigned i = 0; i < kWorkers; ++i) std::thread(work, i + 2).detach();
  std::thread(be_victim).detach();
  for (;;) pause();
}

// ---- The tracer ----

struct Range {
  uintptr_t start = 0, end = 0;
  bool holds(uintptr_t at) const { return at >= start && at < end; }
};

// Where the code of the allocator is mapped in the process: the same place as here, since the process is our fork.
Range allocator_text() {
  Dl_info info;
  Range range;
  FILE* maps = fopen("/proc/self/maps", "r");
  if (maps == nullptr || dladdr(reinterpret_cast<void*>(&malloc), &info) == 0) return range;
  char line[600];
  const auto at = reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, "malloc"));
  while (fgets(line, sizeof line, maps) != nullptr) {
    Range r;
    if (sscanf(line, "%lx-%lx", &r.start, &r.end) == 2 && r.holds(at)) range = r;
  }
  fclose(maps);
  return range;
}

uintptr_t program_counter(pid_t tid) {
  user_regs_struct registers{};
  iovec io{&registers, sizeof registers};
  ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &io);
  return registers.rip;
}

class Watch {
 public:
  Watch(pid_t process, uint64_t limit_ms) : process_(process), limit_ms_(limit_ms), text_(allocator_text()) {}

  // The workers do a round of work while the victim rests. Ends the program if they do not finish.
  void let_others_work() {
    control->done.store(0, std::memory_order_relaxed);
    control->round.fetch_add(1, std::memory_order_release);
    futex_wake(control->round);
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      const uint32_t done = control->done.load(std::memory_order_acquire);
      const auto waited =
          std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
      if (done == kWorkers) {
        if (waited > longest_) longest_ = waited;
        ++rounds_;
        return;
      }
      if (waited > std::chrono::milliseconds(limit_ms_)) fail(done);
      futex_wait(control->done, done, 100);
    }
  }

  void interrupts() {
    std::minstd_rand random(3);
    unsigned inside = 0;
    for (unsigned i = 0; i < kInterrupts; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      if (ptrace(PTRACE_INTERRUPT, victim_, nullptr, nullptr) != 0) die("PTRACE_INTERRUPT");
      wait_stopped();
      inside += text_.holds(program_counter(victim_)) ? 1 : 0;
      let_others_work();
      ptrace(PTRACE_CONT, victim_, nullptr, nullptr);
    }
    printf("interrupts: stopped %u times, %u of them inside the allocator; longest round of the others %ld us\n",
           kInterrupts, inside, static_cast<long>(longest_.count()));
  }

  void steps() {
    control->pairs.store(kPairsWhileStepping, std::memory_order_relaxed);
    control->stepping.store(1, std::memory_order_release);
    int status = wait_stopped();
    while (!(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP && status >> 16 == 0)) {
      ptrace(PTRACE_CONT, victim_, nullptr, nullptr);
      status = wait_stopped();
    }
    std::unordered_set<uintptr_t> places;
    uint64_t steps = 0, inside = 0;
    rounds_ = 0;
    longest_ = {};
    while (control->stepped.load(std::memory_order_acquire) == 0 && steps < kStepsMost) {
      if (ptrace(PTRACE_SINGLESTEP, victim_, nullptr, nullptr) != 0) die("PTRACE_SINGLESTEP");
      wait_stopped();
      ++steps;
      const uintptr_t at = program_counter(victim_);
      if (!text_.holds(at)) continue;
      if (places.insert(at).second || ++inside % kRestEvery == 0) let_others_work();
    }
    if (places.size() < 100) {
      printf("steps: the victim never came by the allocator\n");
      finish(1);
    }
    if (control->stepped.load(std::memory_order_acquire) == 0) {
      printf("FAILED: the victim was not through after %lu steps\n", steps);
      finish(1);
    }
    printf(
        "steps: %lu, rested %u times, at %zu different instructions of the allocator; longest round of the others %ld "
        "us\n",
        steps, rounds_, places.size(), static_cast<long>(longest_.count()));
    ptrace(PTRACE_CONT, victim_, nullptr, nullptr);
  }

  void seize() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (control->victim.load(std::memory_order_acquire) == 0) {
      if (std::chrono::steady_clock::now() > end) die("the process did not start");
      usleep(1000);
    }
    victim_ = control->victim.load(std::memory_order_relaxed);
    if (ptrace(PTRACE_SEIZE, victim_, nullptr, nullptr) == 0) return;
    printf("skipped: no PTRACE_SEIZE here: %s\n", strerror(errno));
    finish(kSkipped);
  }

  [[noreturn]] void finish(int status) {
    fflush(stdout);
    kill(process_, SIGKILL);
    _exit(status);
  }

 private:
  int wait_stopped() {
    int status = 0;
    while (waitpid(victim_, &status, __WALL) < 0) {
      if (errno != EINTR) die("waitpid");
    }
    if (!WIFSTOPPED(status)) die("the victim ended");
    return status;
  }

  [[noreturn]] void fail(uint32_t done) {
    const uintptr_t at = program_counter(victim_);
    printf("FAILED: with the victim stopped at %#lx", at);
    if (text_.holds(at)) printf(" (offset %#lx of the allocator's code)", at - text_.start);
    printf(", %u of %u threads wait: not done after %lu ms\n", kWorkers - done, kWorkers, limit_ms_);
    finish(1);
  }

  [[noreturn]] void die(const char* what) {
    printf("FAILED: %s: %s\n", what, strerror(errno));
    finish(1);
  }

  pid_t process_;
  uint64_t limit_ms_;
  Range text_;
  pid_t victim_ = 0;
  unsigned rounds_ = 0;
  std::chrono::microseconds longest_{0};
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t limit_ms = argc == 3 && strcmp(argv[1], "--limit-ms") == 0 ? strtoul(argv[2], nullptr, 10) : 20000;
  void* shared = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  control = new (shared) Control;
  printf("allocator: %s\n", dlsym(RTLD_DEFAULT, "folio_malloc") != nullptr ? "Folio" : "not Folio");
  fflush(stdout);
  const pid_t process = fork();
  if (process == 0) be_watched();
  Watch watch(process, limit_ms);
  watch.seize();
  watch.interrupts();
  watch.steps();
  watch.finish(0);
}
