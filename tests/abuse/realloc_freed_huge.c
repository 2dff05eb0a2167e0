// realloc of a freed huge object: found at once, whatever the size.
// expect-line: realloc({p}): double free of a huge object #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(10u << 20);
  free(object);
  require(realloc(opaque(object), 12u << 20) == NULL, "a refused realloc returns null");
  heap_still_works();
  return 0;
}
