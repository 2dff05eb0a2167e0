// A large object: it starts nowhere any more, found at once.
// expect-line: free({p}): no large object is there: freed before, or never returned #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(100 * 1024);
  memset(object, 1, 100 * 1024);
  free(object);
  free(opaque(object));
  heap_still_works();
  return 0;
}
