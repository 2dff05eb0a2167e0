// fault_inject MODE CALLS ERROR [NAME=VALUE...] -- PROGRAM ARGUMENT...
//
// Runs the program again and again with a system call failing at each of its occasions in turn.
//   once    the k-th of the calls fails, for k = 1, 2, ... to the last; counted between the program's marks
//   ever    the k-th and all later ones fail, until the program's second mark
//   start   as once, but counted from exec on, except for the loader's own calls, not all of which it survives
//   never   all fail, from exec on, as on a system that does not have them: one run
//
// CALLS: names, separated by commas. ERROR: ENOMEM, EPERM, ... The program must end with status 0; with `start` it may
// end with any status, but not by a signal. 77 (skipped) if the system has no seccomp, or the calls are never made.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>

#include "supervisor.h"

namespace {

constexpr int kSkipped = 77;
constexpr unsigned kSeconds = 60;
constexpr unsigned kMostRuns = 100;

struct Name {
  const char *name;
  int number;
};

constexpr Name kCalls[] = {
    {"mmap", __NR_mmap},
    {"munmap", __NR_munmap},
    {"madvise", __NR_madvise},
    {"mremap", __NR_mremap},
    {"mprotect", __NR_mprotect},
    {"process_madvise", __NR_process_madvise},
    {"rseq", __NR_rseq},
    {"getcpu", __NR_getcpu},
    {"membarrier", __NR_membarrier},
    {"sched_getaffinity", __NR_sched_getaffinity},
    {"process_vm_readv", __NR_process_vm_readv},
    {"getrusage", __NR_getrusage},
    {"newfstatat", __NR_newfstatat},
    {"readlinkat", __NR_readlinkat},
    {"sched_getscheduler", __NR_sched_getscheduler},
    {"sched_setaffinity", __NR_sched_setaffinity},
    {"sched_setscheduler", __NR_sched_setscheduler},
    {"openat", __NR_openat},
    {"read", __NR_read},
    {"pread64", __NR_pread64},
    {"fcntl", __NR_fcntl},
    {"fstat", __NR_fstat},
    {"sysinfo", __NR_sysinfo},
};

constexpr Name kErrors[] = {
    {"ENOMEM", ENOMEM}, {"EPERM", EPERM},   {"ENOSYS", ENOSYS}, {"EINVAL", EINVAL},
    {"EAGAIN", EAGAIN}, {"EFAULT", EFAULT}, {"ignored", 0},  // the call succeeds and does nothing
};

template <size_t kCount>
int number_of(const Name (&names)[kCount], const std::string &name) {
  for (const Name &known : names) {
    if (name == known.name) return known.number;
  }
  fprintf(stderr, "fault_inject: \"%s\" is unknown here\n", name.c_str());
  exit(2);
}

std::vector<int> numbers_of(const std::string &names) {
  std::vector<int> numbers;
  for (size_t from = 0; from <= names.size();) {
    size_t to = std::min(names.find(',', from), names.size());
    numbers.push_back(number_of(kCalls, names.substr(from, to - from)));
    from = to + 1;
  }
  return numbers;
}

struct Request {
  std::string mode;
  fault::Plan plan;
  std::vector<std::string> command;
};

Request parse(int count, char **arguments) {
  Request request;
  int i = 4;
  for (; i < count && strcmp(arguments[i], "--") != 0; i++) request.plan.environment.push_back(arguments[i]);
  for (i++; i < count; i++) request.command.push_back(arguments[i]);
  if (count < 6 || request.command.empty()) {
    fprintf(stderr, "usage: fault_inject once|ever|start|never CALLS ERROR [NAME=VALUE...] -- PROGRAM ARGUMENT...\n");
    exit(2);
  }
  request.mode = arguments[1];
  request.plan.calls = numbers_of(arguments[2]);
  request.plan.error = number_of(kErrors, arguments[3]);
  request.plan.wait_for_mark = request.mode == "once" || request.mode == "ever";
  request.plan.spare_loader = request.mode == "start";
  return request;
}

bool good(const Request &request, const fault::Outcome &outcome) {
  if (outcome.timed_out || WIFSIGNALED(outcome.status)) return false;
  return request.mode == "start" ? outcome.failed == 0 ? outcome.status == 0 : true : outcome.status == 0;
}

void say(const char *what, unsigned k, const fault::Outcome &outcome) {
  printf("%s at call %u: ", what, k);
  if (outcome.timed_out) {
    printf("did not end within %u s", kSeconds);
  } else if (WIFSIGNALED(outcome.status)) {
    printf("ended by signal %d (%s)", WTERMSIG(outcome.status), strsignal(WTERMSIG(outcome.status)));
  } else {
    printf("status %d", WEXITSTATUS(outcome.status));
  }
  printf(", %u calls failed\n", outcome.failed);
}

int run_never(const Request &request) {
  fault::Plan plan = request.plan;
  plan.first = 1;
  plan.count = UINT_MAX;
  const fault::Outcome outcome = fault::run(request.command, plan, kSeconds);
  if (!outcome.possible) return kSkipped;
  if (good(request, outcome)) return 0;
  say("FAILED", 1, outcome);
  return 1;
}

int run_sweep(const Request &request) {
  fault::Plan plan = request.plan;
  const fault::Outcome unharmed = fault::run(request.command, plan, kSeconds);
  if (!unharmed.possible) {
    printf("skipped: no seccomp listener here\n");
    return kSkipped;
  }
  if (!good(request, unharmed)) {
    say("FAILED without any fault", 0, unharmed);
    return 1;
  }
  if (unharmed.calls_seen == 0) {
    printf("skipped: never called\n");
    return kSkipped;
  }
  plan.count = request.mode == "ever" ? UINT_MAX : 1;
  // Each of the first; where there are very many, the rest evenly, since long runs of them are of one kind.
  constexpr unsigned kEach = kMostRuns / 2;
  const unsigned step = unharmed.calls_seen > kMostRuns ? (unharmed.calls_seen - kEach) / (kMostRuns - kEach) + 1 : 1;
  unsigned bad = 0, runs = 0;
  for (unsigned k = 1; k <= unharmed.calls_seen; k += k < kEach ? 1 : step, runs++) {
    plan.first = k;
    const fault::Outcome outcome = fault::run(request.command, plan, kSeconds);
    if (good(request, outcome)) continue;
    say("FAILED", k, outcome);
    if (++bad == 10) break;
  }
  printf("%u calls, %u runs, %u bad\n", unharmed.calls_seen, runs, bad);
  return bad == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char **arguments) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const Request request = parse(count, arguments);
  return request.mode == "never" ? run_never(request) : run_sweep(request);
}
