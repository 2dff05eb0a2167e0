// realloc of the object freed last: what it frees in the end is found to be free.
// expect-line: realloc({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(64);
  free(object);
  void *grown = realloc(opaque(object), 3000);
  folio_collect();
  heap_still_works();
  free(grown);
  return 0;
}
