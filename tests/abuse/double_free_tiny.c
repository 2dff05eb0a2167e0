// As double_free_at_once, in the 8-byte bin and for an object of size 0.
// expect-line: free({p}): double free of a 8-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(opaque_size(0));
  free(object);
  free(opaque(object));
  heap_still_works();
  return 0;
}
