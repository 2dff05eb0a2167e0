// A guarded object is written to behind its end.
// options: guard:1
// expect-line: write({at}): overflow: 0 bytes behind the end of a guarded object of {size} bytes at {p}
// #guarded-objects
// expect-stacks: accessed, allocated
// expect-status: SIGSEGV
#include "abuse.h"

int main(void) {
  char *object = reported_guarded_object(112, 1);
  tell("at", object + 112);
  memset(object, 1, opaque_size(113));
  return 0;
}
