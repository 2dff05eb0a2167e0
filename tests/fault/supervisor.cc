#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

namespace fault {

namespace {

constexpr int kNoFilter = 125;  // exit status of a child that could not install it

std::vector<sock_filter> filter_for(const std::vector<int> &calls) {
  auto load = [](size_t offset) { return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<__u32>(offset)); };
  std::vector<sock_filter> code;
  code.push_back(load(offsetof(seccomp_data, nr)));
  for (int call : calls) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(call), 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
  }
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_prctl, 0, 3));
  code.push_back(load(offsetof(seccomp_data, args)));
  code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kMarkPrctl, 0, 1));
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  return code;
}

// One byte, with room for a descriptor beside it.
struct Message {
  char byte = 0;
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {nullptr, 0, &part, 1, control, sizeof control, 0};
};

bool send_descriptor(int socket, int descriptor) {
  Message message;
  cmsghdr *header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  return sendmsg(socket, &message.header, 0) == 1;
}

// The descriptor that the child sends, or -1 if it ends without one.
int receive_descriptor(int socket) {
  Message message;
  if (recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message.header) == nullptr) return -1;
  int descriptor = -1;
  memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message.header)), sizeof descriptor);
  return descriptor;
}

// In the child: everything is prepared, so that between fork and exec nothing is allocated.
[[noreturn]] void become(char *const *arguments, char *const *environment, const sock_fprog &program, int socket) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(kNoFilter);
  long listener = syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
  if (listener < 0 || !send_descriptor(socket, static_cast<int>(listener))) _exit(kNoFilter);
  close(socket);
  execve(arguments[0], arguments, environment);
  _exit(126);
}

// Whether the loader makes the call: it cannot go on after all of its failures, with any malloc.
bool is_loaders(const seccomp_notif &asked) {
  if (asked.data.nr == __NR_mmap && (asked.data.args[3] & MAP_ANONYMOUS) == 0) return true;
  const std::string path = "/proc/" + std::to_string(asked.pid) + "/maps";
  FILE *maps = fopen(path.c_str(), "re");
  if (maps == nullptr) return false;
  bool found = false;
  char line[4096];
  while (!found && fgets(line, sizeof line, maps) != nullptr) {
    unsigned long from = 0, to = 0;
    if (sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
    const unsigned long at = asked.data.instruction_pointer;
    found = from <= at && at < to && strstr(line, "/ld-") != nullptr;
  }
  fclose(maps);
  return found;
}

class Supervisor {
 public:
  Supervisor(const Plan &plan, int listener) : plan_(plan), listener_(listener), counting_(!plan.wait_for_mark) {}

  // Answers until the program has ended or the time is over.
  void serve(unsigned seconds) {
    const time_t end = time(nullptr) + static_cast<time_t>(seconds);
    for (;;) {
      pollfd waiting = {listener_, POLLIN, 0};
      const int ready = poll(&waiting, 1, 1000);
      if (ready < 0 && errno != EINTR) return;
      if (ready > 0 && (waiting.revents & POLLIN) != 0) answer();
      if (ready > 0 && (waiting.revents & (POLLHUP | POLLERR)) != 0) return;
      if (time(nullptr) > end) {
        timed_out_ = true;
        return;
      }
    }
  }

  bool timed_out() const { return timed_out_; }
  unsigned seen() const { return seen_; }
  unsigned failed() const { return failed_; }

 private:
  void answer() {
    seccomp_notif asked = {};
    if (ioctl(listener_, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) return;  // it was killed meanwhile
    seccomp_notif_resp response = {};
    response.id = asked.id;
    if (asked.data.nr == __NR_prctl && asked.data.args[0] == kMarkPrctl) {
      counting_ = asked.data.args[1] != 0;
    } else if (must_fail(asked)) {
      response.error = -plan_.error;
      failed_++;
    } else {
      response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    }
    ioctl(listener_, SECCOMP_IOCTL_NOTIF_SEND, &response);  // fails if it was killed meanwhile
  }

  bool must_fail(const seccomp_notif &asked) {
    if (!counting_ || (plan_.spare_loader && is_loaders(asked))) return false;
    seen_++;
    return seen_ >= plan_.first && failed_ < plan_.count;
  }

  const Plan &plan_;
  const int listener_;
  bool counting_;
  bool timed_out_ = false;
  unsigned seen_ = 0;
  unsigned failed_ = 0;
};

std::vector<char *> pointers_to(std::vector<std::string> &texts) {
  std::vector<char *> pointers;
  for (std::string &text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Outcome run(const std::vector<std::string> &command, const Plan &plan, unsigned seconds) {
  std::vector<std::string> arguments = command;
  std::vector<std::string> environment = plan.environment;
  for (char **entry = environ; *entry != nullptr; entry++) environment.push_back(*entry);
  std::vector<char *> argument_pointers = pointers_to(arguments), environment_pointers = pointers_to(environment);
  std::vector<sock_filter> code = filter_for(plan.calls);
  const sock_fprog program = {static_cast<unsigned short>(code.size()), code.data()};

  Outcome outcome;
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    perror("socketpair");
    outcome.possible = false;
    return outcome;
  }
  const pid_t child = fork();
  if (child == 0) become(argument_pointers.data(), environment_pointers.data(), program, sockets[1]);
  close(sockets[1]);
  const int listener = receive_descriptor(sockets[0]);
  close(sockets[0]);
  if (listener >= 0) {
    Supervisor supervisor(plan, listener);
    supervisor.serve(seconds);
    outcome.timed_out = supervisor.timed_out();
    if (outcome.timed_out) kill(child, SIGKILL);
    outcome.calls_seen = supervisor.seen();
    outcome.failed = supervisor.failed();
    close(listener);
  }
  waitpid(child, &outcome.status, 0);
  outcome.possible = listener >= 0;
  return outcome;
}

}  // namespace fault
