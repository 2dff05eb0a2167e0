// A byte is written behind a guarded object, where the page goes on for the sake of alignment: seen when it is freed.
// options: guard:1
// expect-line: free({p}): overflow: written since it was allocated, 0 bytes behind the end of a guarded object of
// {size} bytes at {p} #guarded-objects
// expect-stacks: allocated, freed
#include "abuse.h"

int main(void) {
  char *object = reported_object(100);
  ((char *)opaque(object))[100] = '\0';
  free(object);
  return 0;
}
