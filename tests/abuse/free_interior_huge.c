// A huge object, 64 bytes past its start: found at once.
// expect-line: free({inside}): not the start of an object: inside a huge object of {size} bytes at {base} #invalid-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(11u << 20);
  tell("inside", object + 64);
  free(opaque(object + 64));
  memset(object, 1, 11u << 20);
  heap_still_works();
  free(object);
  return 0;
}
