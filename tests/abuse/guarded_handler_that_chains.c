// The program's own handler of SIGSEGV, set when Folio's was there already, goes on to that one and returns, as crash
// reporters do that leave the rest to whoever was there before. The instruction faults again: the process must end.
// options: guard:1
// expect-line: read({at}): overflow: 0 bytes behind the end of a guarded object of {size} bytes at {p} #guarded-objects
// expect-stacks: accessed, allocated
// expect-status: SIGSEGV
#include <signal.h>

#include "abuse.h"

static struct sigaction before;

static void handle(int number, siginfo_t *info, void *context) {
  if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
}

int main(void) {
  struct sigaction mine;
  memset(&mine, 0, sizeof mine);
  mine.sa_flags = SA_SIGINFO;
  mine.sa_sigaction = handle;
  require(sigaction(SIGSEGV, &mine, &before) == 0, "sigaction");
  char *object = reported_guarded_object(112, 1);
  tell("at", object + 112);
  return object[opaque_size(112)] == 1;
}
