// With stderr closed the line has nowhere to go: the process still aborts.
// options: errors:abort
// expect-status: SIGABRT
#include "abuse.h"

int main(void) {
  close(STDERR_FILENO);
  char *object = reported_object(64);
  free(object);
  free(opaque(object));
  heap_still_works();
  return 0;
}
