// folio_expand of the middle of an object.
// expect-line: folio_expand({inside}): not the start of an object: inside a {size}-byte object (bin {bin}) at {base}
// #invalid-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(256);
  tell("inside", object + 64);
  require(!folio_expand(opaque(object + 64), 10), "a refused expand returns false");
  heap_still_works();
  free(object);
  return 0;
}
