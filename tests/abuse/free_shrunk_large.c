// What realloc has cut off a large object is no longer its: a free of it is one of nothing.
// expect-line: free({tail}): no large object is there: freed before, or never returned #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(3u << 20);
  require(realloc(object, 1u << 20) == object, "a large object shrinks in place");
  tell("tail", object + (2u << 20));
  free(opaque(object + (2u << 20)));
  memset(object, 1, 1u << 20);
  heap_still_works();
  free(object);
  return 0;
}
