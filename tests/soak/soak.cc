// The program of the soak: eight workers, threads that come and go, children, a ninth thread that asks for figures.
// tests/soak/soak.py starts it with the library preloaded, judges what it tells, and ends it. By itself it needs no
// library.
//
//   soak --seed N --worker-mib N --without NAME,... --sabotage w|l|h
//
// Commands on standard input, one letter each; what it answers on standard output, a line each:
//
//   r   all come to rest, queues are emptied          "rest live_held=BYTES spare=BYTES unreported=COUNT"
//   e   the same, and everything is freed             the same
//   s   statistics                                    "stats live=... cached=... ..."
//   g   all go on                                     "going"
//   q   exit, with all threads at work
//
// Every second: "beat COUNT...", the steps of each actor. At a failure: "FAILED pid PID tid TID: what", after which the
// process waits for somebody to look at its stacks.
#include "soak.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <folio/folio.h>

namespace soak {

Settings settings;
Count counts[kActors];
std::atomic<uint64_t> unreported_ends{0};
std::atomic<unsigned> wanted{kRest};
std::atomic<unsigned> resting{0};
std::atomic<bool> failing{false};

namespace {

constexpr unsigned kSecondsForACheck = 90;

void write_line(const char* text, int length) {
  if (length > 0 && write(1, text, static_cast<size_t>(length)) != length) _exit(1);  // nobody listens any more
}

}  // namespace

void pause_us(unsigned microseconds) {
  const timespec time{microseconds / 1000000, microseconds % 1000000 * 1000L};
  nanosleep(&time, nullptr);
}

void tell(const char* format, ...) {
  char line[600];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  write_line(line, length < static_cast<int>(sizeof line) ? length : static_cast<int>(sizeof line));
}

void fail(const char* format, ...) {
  failing.store(true);
  char line[600];
  int length = snprintf(line, sizeof line, "FAILED pid %d tid %d: ", getpid(), gettid());
  va_list arguments;
  va_start(arguments, format);
  length += vsnprintf(line + length, sizeof line - static_cast<size_t>(length) - 1, format, arguments);
  va_end(arguments);
  if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
  line[length++] = '\n';
  write_line(line, length);
  pause_us(kSecondsForACheck * 1000000);
  _exit(3);
}

void* map_pages(size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) fail("mmap: %s", strerror(errno));
  return at;
}

void rest(void (*drain)(unsigned worker, bool everything), unsigned worker) {
  unsigned followed = kRun;
  for (;;) {
    const unsigned now = wanted.load(std::memory_order_acquire);
    const unsigned order = now % kOrders;
    if (order == kRun) return;
    if (now != followed) {
      if (order != kRest && drain != nullptr) drain(worker, order == kEmpty);
      followed = now;
      resting.fetch_add(1, std::memory_order_acq_rel);
    }
    pause_us(2000);
  }
}

namespace {

void crashed(int signal, siginfo_t* info, void*) {
  if (signal == SIGABRT) fail("crash: aborted");
  fail("crash: signal %d (%s) at address %p", signal, sigabbrev_np(signal), info->si_addr);
}

void beat() {
  char line[400];
  int length = snprintf(line, sizeof line, "beat");
  for (const Count& count : counts) {
    length += snprintf(line + length, sizeof line - static_cast<size_t>(length), " %lu",
                       count.steps.load(std::memory_order_relaxed));
  }
  line[length++] = '\n';
  write_line(line, length);
}

void order(Order what) {
  static unsigned number = 0;
  resting.store(0, std::memory_order_relaxed);
  wanted.store(++number * kOrders + what, std::memory_order_release);
  for (unsigned i = 1; what != kRun && resting.load(std::memory_order_acquire) != kActors; ++i) {
    pause_us(2000);
    if (i % 500 == 0) beat();
  }
}

// First nobody sends any more, then the queues are emptied.
void come_to_rest(bool everything) {
  order(kRest);
  order(everything ? kEmpty : kDrain);
  int64_t live = 0, spare = 0;
  for (const Count& count : counts) {
    live += count.live.load(std::memory_order_relaxed);
    spare += count.spare.load(std::memory_order_relaxed);
  }
  tell("rest live_held=%ld spare=%ld unreported=%lu\n", live, spare, unreported_ends.load());
}

void tell_stats() {
  folio_stats s = {};
  s.struct_size = sizeof s;
  const auto get = reinterpret_cast<decltype(folio_stats_get)*>(dlsym(RTLD_DEFAULT, "folio_stats_get"));
  const bool known = get != nullptr && get(&s);
  tell("stats known=%d live=%zu cached=%zu fragmented=%zu dirty=%zu resident=%zu huge=%zu metadata=%zu threads=%zu\n",
       known, s.live, s.cached, s.fragmented, s.dirty, s.resident, s.huge_live, s.metadata, s.threads);
}

[[noreturn]] void obey() {
  for (;;) {
    pollfd input{0, POLLIN, 0};
    if (poll(&input, 1, 1000) > 0) {
      char command = 'q';
      if (read(0, &command, 1) != 1) _exit(1);
      if (command == 'q') exit(0);  // in the middle of it all
      if (command == 'r' || command == 'e') come_to_rest(command == 'e');
      if (command == 's') tell_stats();
      if (command == 'g') {
        order(kRun);
        tell("going\n");
      }
    }
    beat();
  }
}

void leave_out(const char* names) {
  while (*names != 0) {
    const size_t length = strcspn(names, ",");
    bool known = length == 0;
    for (unsigned i = 0; i < kHazards; ++i) {
      if (strlen(kHazardNames[i]) != length || strncmp(kHazardNames[i], names, length) != 0) continue;
      settings.with[i] = false;
      known = true;
    }
    if (!known) {
      tell("unknown: %.*s; there are:", static_cast<int>(length), names);
      for (const char* each : kHazardNames) tell(" %s", each);
      tell("\n");
      _exit(2);
    }
    names += length + (names[length] == ',' ? 1 : 0);
  }
}

void read_settings(int argc, char** argv) {
  for (bool& with : settings.with) with = true;
  for (int i = 1; i + 1 < argc; i += 2) {
    const char* const value = argv[i + 1];
    if (strcmp(argv[i], "--seed") == 0) settings.seed = strtoull(value, nullptr, 10);
    if (strcmp(argv[i], "--worker-mib") == 0) settings.worker_bytes = strtoull(value, nullptr, 10) << 20;
    if (strcmp(argv[i], "--without") == 0) leave_out(value);
    if (strcmp(argv[i], "--sabotage") == 0) settings.sabotage = *value;
  }
}

template <void (*act)()>
void* act_thread(void*) {
  act();
  return nullptr;
}

void start(void* (*run)(void*), void* argument) {
  pthread_t thread;
  if (pthread_create(&thread, nullptr, run, argument) != 0) fail("pthread_create");
}

}  // namespace

}  // namespace soak

int main(int argc, char** argv) {
  using namespace soak;
  read_settings(argc, argv);
  // What looks at it from outside, which may be no ancestor, shall come to its turn.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  if (nice(5) < 0) tell("nice: %s\n", strerror(errno));
  // Nobody can hang unseen: what goes wrong is told, and the process waits to be looked at.
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP}) {
    struct sigaction action = {};
    action.sa_sigaction = crashed;
    action.sa_flags = SA_SIGINFO;  // also for a second thread, which must not end the process before it is looked at
    sigaction(signal, &action, nullptr);
  }
  prepare_churn();
  static unsigned numbers[kWorkers];
  for (unsigned i = 0; i < kWorkers; ++i) {
    numbers[i] = i;
    start(
        [](void* number) -> void* {
          work(*static_cast<unsigned*>(number));
          return nullptr;
        },
        &numbers[i]);
  }
  start(act_thread<churn>, nullptr);
  start(act_thread<make_children>, nullptr);
  start(act_thread<ask>, nullptr);
  obey();
}
