// malloc_usable_size of an object that is free and in no cache.
// expect-line: malloc_usable_size({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include <malloc.h>

#include "abuse.h"

int main(void) {
  char *keep = (char *)malloc(64);
  char *object = reported_object(64);
  free(object);
  folio_collect();
  require(malloc_usable_size(opaque(object)) == 0, "no usable size");
  heap_still_works();
  free(keep);
  return 0;
}
