// An address inside of a guarded object is freed.
// options: guard:1,errors:warn
// expect-line: free({at}): not the start of an object: byte 16 of a guarded object of {size} bytes at {p} #invalid-free
// expect-stacks: called, allocated
// expect-status: 0
#include "abuse.h"

int main(void) {
  char *object = reported_object(200);
  tell("at", object + 16);
  free(opaque(object + 16));
  memset(object, 1, 200);
  free(object);
  heap_still_works();
  return 0;
}
