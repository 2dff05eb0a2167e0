// The object freed last is freed again: it lies in the top slot, so the second free finds it.
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(64);
  free(object);
  free(opaque(object));
  heap_still_works();
  return 0;
}
