// C23: the size given is more than the object has.
// expect-line: folio_free_sized({p}): size 3000 given, but the object has {size} usable bytes (bin {bin}) #wrong-size
#include "abuse.h"

int main(void) {
  char *object = reported_object(100);
  folio_free_sized(opaque(object), opaque_size(3000));
  heap_still_works();
  free(object);
  return 0;
}
