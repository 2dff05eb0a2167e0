// A guarded object is freed twice.
// options: guard:1
// expect-line: free({p}): double free of a guarded object of {size} bytes at {p} #double-free
// expect-stacks: called, allocated, freed
// abort-before: went_on
#include "abuse.h"

int main(void) {
  char *object = reported_object(200);
  free(object);
  free(opaque(object));
  tell("went_on", object);
  return 0;
}
