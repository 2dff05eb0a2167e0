// A guarded object is written to before its start.
// options: guard:1
// expect-line: write({at}): underflow: 1 byte before the start of a guarded object of {size} bytes at {p}
// #guarded-objects
// expect-stacks: accessed, allocated
// expect-status: SIGSEGV
#include "abuse.h"

int main(void) {
  char *object = reported_guarded_object(100, 0);
  tell("at", object - 1);
  ((char *)opaque(object - 1))[0] = 1;
  return 0;
}
