// realloc of an object that is free and in no cache: found at once, whatever the size.
// expect-line: realloc({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *keep = (char *)malloc(64);
  char *object = reported_object(64);
  free(object);
  folio_collect();
  require(realloc(opaque(object), 60) == NULL, "a refused realloc returns null");
  heap_still_works();
  free(keep);
  return 0;
}
