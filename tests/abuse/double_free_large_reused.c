// The second free of a large object whose granules are the middle of a larger one by now.
// expect-line: free({inner}): not the start of an object: inside a large object of {size} bytes at {base} #invalid-free
#include "abuse.h"

int main(void) {
  char *below = (char *)opaque(malloc(400 * 1024));
  char *object = (char *)opaque(malloc(400 * 1024));
  tell("inner", object);
  free(below);
  free(object);
  char *both = reported_object(800 * 1024);
  require(both < object && object < both + 800 * 1024, "their granules merged");
  free(opaque(object));
  memset(both, 1, 800 * 1024);
  free(both);
  heap_still_works();
  return 0;
}
