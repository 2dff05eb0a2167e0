// A guarded object is freed twice: the second one does nothing.
// options: guard:1,errors:warn
// expect-line: free({p}): double free of a guarded object of {size} bytes at {p} #double-free
// expect-stacks: called, allocated, freed
// expect-status: 0
#include "abuse.h"

int main(void) {
  char *object = reported_object(200);
  free(object);
  free(opaque(object));
  heap_still_works();
  return 0;
}
