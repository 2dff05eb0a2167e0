// A report to a pipe that nobody reads any more: SIGPIPE does not end the program, and comes neither later nor in place
// of the program's own.
#include <signal.h>

#include "abuse.h"

static int pending(void) {
  sigset_t set;
  require(sigpending(&set) == 0, "sigpending");
  return sigismember(&set, SIGPIPE);
}

static void misuse(void) {
  _Alignas(16) static char foreign[64];
  free(opaque(foreign));
}

int main(void) {
  int ends[2];
  require(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO, "pipe");
  close(ends[0]);
  close(ends[1]);
  misuse();
  require(!pending(), "nothing is left");
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  require(sigprocmask(SIG_BLOCK, &set, &before) == 0 && !sigismember(&before, SIGPIPE), "the mask is as it was");
  misuse();
  require(!pending(), "nothing is left where the program has it blocked");
  require(write(STDERR_FILENO, "x", 1) < 0 && pending(), "the program's own");
  misuse();
  require(pending(), "the program's own stays");
  require(sigprocmask(SIG_BLOCK, NULL, &before) == 0 && sigismember(&before, SIGPIPE), "the mask is as it was");
  int number;
  require(sigwait(&set, &number) == 0 && number == SIGPIPE, "the program's own is taken");
  require(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0, "unblocked");
  heap_still_works();
  return 0;
}
