// A child process for what must not happen to the test program: limits, refused system calls, corrupted structures.
#pragma once

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

namespace folio_test {

inline constexpr int kPassed = 0, kFailed = 1, kCannot = 77;

// Runs body() in a fork of this process; what it returns (0 to 125), or -1 if it died.
template <class Body>
int in_child(Body&& body) {
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

// False if there are no filters here.
inline bool filter_call(long number, unsigned action) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, action),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof filter / sizeof filter[0], filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// From now on this system call fails with that error, in this process for good. False if there are no filters here.
inline bool refuse_call(long number, int error) {
  return filter_call(number, SECCOMP_RET_ERRNO | static_cast<unsigned>(error));
}

// The same where its third argument (or another one, counted from 0), of which the lower half is looked at, is that.
inline bool refuse_call_with(long number, unsigned value, int error, unsigned argument = 2) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
               static_cast<unsigned>(offsetof(seccomp_data, args) + argument * sizeof(uint64_t))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof filter / sizeof filter[0], filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// From now on this system call does nothing but `answer` with its first three arguments, and succeeds. False if there
// are no filters here.
inline void (*answer_of_call)(uint64_t, uint64_t, uint64_t);
inline bool answer_call(long number, void (*answer)(uint64_t, uint64_t, uint64_t)) {
  answer_of_call = answer;
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t*, void* context) {
    mcontext_t& m = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    answer_of_call(static_cast<uint64_t>(m.gregs[REG_RDI]), static_cast<uint64_t>(m.gregs[REG_RSI]),
                   static_cast<uint64_t>(m.gregs[REG_RDX]));
    m.gregs[REG_RAX] = 0;
#else
    answer_of_call(m.regs[0], m.regs[1], m.regs[2]);
    m.regs[0] = 0;
#endif
  };
  return sigaction(SIGSYS, &action, nullptr) == 0 && filter_call(number, SECCOMP_RET_TRAP);
}

// At most `bytes` of address space more than now. The hard limit stays, so that it can be lifted again. False where it
// does not take hold: qemu-user says yes to it and does nothing.
inline bool limit_address_space(size_t bytes) {
  FILE* statm = fopen("/proc/self/statm", "r");
  size_t pages = 0;
  const bool read = statm != nullptr && fscanf(statm, "%zu", &pages) == 1;
  if (statm != nullptr) fclose(statm);
  rlimit limit;
  if (!read || getrlimit(RLIMIT_AS, &limit) != 0) return false;
  limit.rlim_cur = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + bytes;
  rlimit now;
  return setrlimit(RLIMIT_AS, &limit) == 0 && getrlimit(RLIMIT_AS, &now) == 0 && now.rlim_cur == limit.rlim_cur;
}

}  // namespace folio_test
