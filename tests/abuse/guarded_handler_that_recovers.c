// A program that recovers from faults of its own, by a handler that goes on to the one it has replaced: it keeps it.
// options: guard:1
// expect-status: 0
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include "abuse.h"

static struct sigaction before;
static sigjmp_buf after_fault;

static void handle(int number, siginfo_t *info, void *context) {
  if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
  siglongjmp(after_fault, 1);
}

int main(void) {
  struct sigaction mine;
  memset(&mine, 0, sizeof mine);
  mine.sa_flags = SA_SIGINFO;
  mine.sa_sigaction = handle;
  require(sigaction(SIGSEGV, &mine, &before) == 0, "sigaction");
  char *closed = (char *)mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(closed != MAP_FAILED, "mmap");
  for (volatile int i = 0; i < 3; i++) {
    if (sigsetjmp(after_fault, 1) == 0) {
      *(volatile char *)closed = 1;
      require(0, "a fault");
    }
  }
  heap_still_works();
  return 0;
}
