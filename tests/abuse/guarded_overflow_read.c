// A guarded object is read behind its end, with errors:warn: a fault ends the process whatever errors says.
// options: guard:1,errors:warn
// expect-line: read({at}): overflow: 7 bytes behind the end of a guarded object of {size} bytes at {p} #guarded-objects
// expect-stacks: accessed, allocated
// expect-status: SIGSEGV
#include "abuse.h"

int main(void) {
  char *object = reported_guarded_object(3008, 1);
  tell("at", object + 3015);
  return object[opaque_size(3015)] == 1;
}
