// Other objects are freed in between: found when the magazine is emptied.
// expect-line: *({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(64);
  char *other = (char *)malloc(64);
  char *another = (char *)malloc(64);
  free(object);
  free(other);
  free(opaque(object));
  free(another);
  folio_collect();
  heap_still_works();
  return 0;
}
