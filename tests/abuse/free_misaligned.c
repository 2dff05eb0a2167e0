// One byte past the start.
// expect-line: *({inside}): not the start of an object: inside a {size}-byte object (bin {bin}) at {base} #invalid-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(64);
  tell("inside", object + 1);
  free(opaque(object + 1));
  folio_collect();
  heap_still_works();
  free(object);
  return 0;
}
