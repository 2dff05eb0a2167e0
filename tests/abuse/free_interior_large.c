// A page of a large object. The message has the size of its slot, of which a random start may use less.
// expect-line: *({inside}): not the start of an object: inside a ?-byte object (bin {bin}) at {base} #invalid-free
#include "abuse.h"

int main(void) {
  char *object = told_object(300 * 1024);
  tell("inside", object + 8192);
  free(opaque(object + 8192));
  folio_collect();
  heap_still_works();
  free(object);
  return 0;
}
