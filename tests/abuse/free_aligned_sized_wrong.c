// C23: a wrong size for an aligned object.
// expect-line: folio_free_aligned_sized({p}): size 9000 given, but the object has {size} usable bytes (bin {bin})
// #wrong-size
#include "abuse.h"

int main(void) {
  char *object = (char *)folio_aligned_alloc(256, 300);
  require(object != NULL, "folio_aligned_alloc");
  tell_object(object);
  folio_free_aligned_sized(opaque(object), 256, opaque_size(9000));
  heap_still_works();
  free(object);
  return 0;
}
