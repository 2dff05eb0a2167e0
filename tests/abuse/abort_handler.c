// A program's own SIGABRT handler sees the misuse after the line is out.
// options: errors:abort
// expect-status: 7
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include <signal.h>

#include "abuse.h"

static void on_abort(int signal_number) {
  (void)signal_number;
  _exit(7);
}

int main(void) {
  signal(SIGABRT, on_abort);
  char *object = reported_object(64);
  free(object);
  free(opaque(object));
  heap_still_works();
  return 0;
}
