// A pointer into the middle of an object: found when the magazine is emptied.
// expect-line: *({inside}): not the start of an object: inside a {size}-byte object (bin {bin}) at {base} #invalid-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(1000);
  tell("inside", object + 512);
  free(opaque(object + 512));
  folio_collect();
  heap_still_works();
  free(object);
  return 0;
}
