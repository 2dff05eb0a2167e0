// The middle of a huge object.
// expect-line: realloc({inside}): not the start of an object: inside a huge object of {size} bytes at {base}
// #invalid-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(9u << 20);
  tell("inside", object + (4u << 20));
  require(realloc(opaque(object + (4u << 20)), 20u << 20) == NULL, "a refused realloc returns null");
  memset(object, 1, 9u << 20);
  heap_still_works();
  free(object);
  return 0;
}
