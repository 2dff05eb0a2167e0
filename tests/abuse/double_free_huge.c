// A huge object: its chunks are no longer its own, found at once.
// expect-line: free({p}): double free of a huge object #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(10u << 20);
  memset(object, 1, 10u << 20);
  free(object);
  free(opaque(object));
  heap_still_works();
  return 0;
}
