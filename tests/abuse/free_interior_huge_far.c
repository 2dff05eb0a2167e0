// Inside a huge object of which only the first chunks are in the table.
// expect-line: free({inside}): not the start of an object: inside a huge object of {size} bytes at {base} #invalid-free
#include "abuse.h"

int main(void) {
  size_t size = (size_t)64 << 30;
  char *object = reported_object(size);
  char *inside = object + ((size_t)20 << 30);
  tell("inside", inside);
  free(opaque(inside));
  inside[0] = 1;
  heap_still_works();
  free(object);
  return 0;
}
