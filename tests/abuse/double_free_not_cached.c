// The thread does not cache the bin yet: the magazine that waits on its CPU holds the object already.
// watch: no
// abort-before: went_on
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(16000);
  free(object);
  free(opaque(object));
  tell("went_on", object);
  heap_still_works();
  return 0;
}
