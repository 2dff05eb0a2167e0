// The message names the function that was called.
// expect-line: folio_free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(200);
  folio_free(object);
  folio_free(opaque(object));
  heap_still_works();
  return 0;
}
