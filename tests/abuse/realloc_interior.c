// realloc looks at its object at once, since it must know the size anyway.
// expect-line: realloc({inside}): not the start of an object: inside a {size}-byte object (bin {bin}) at {base}
// #invalid-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(256);
  memset(object, 7, 256);
  tell("inside", object + 16);
  require(realloc(opaque(object + 16), 5000) == NULL, "a refused realloc returns null");
  for (int i = 0; i < 256; i++) require(object[i] == 7, "the object stays as it was");
  heap_still_works();
  free(object);
  return 0;
}
