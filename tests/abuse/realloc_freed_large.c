// realloc of a freed large object: found at once, whatever the size.
// expect-line: realloc({p}): no large object is there: freed before, or never returned #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(500 * 1024);
  free(object);
  require(realloc(opaque(object), 1u << 20) == NULL, "a refused realloc returns null");
  heap_still_works();
  return 0;
}
