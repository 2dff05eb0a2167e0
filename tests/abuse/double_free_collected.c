// The object has gone back to its folio: a second free finds the bit clear when the magazine is emptied.
// expect-line: *({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *keep = (char *)malloc(64);
  char *object = reported_object(64);
  free(object);
  folio_collect();
  free(opaque(object));
  folio_collect();
  heap_still_works();
  free(keep);
  return 0;
}
