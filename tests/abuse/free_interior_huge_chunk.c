// A huge object, at the start of its second chunk: aligned like a start, but none.
// expect-line: free({inside}): not the start of an object: inside a huge object of {size} bytes at {base} #invalid-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(11u << 20);
  uintptr_t chunk_bytes = 2u << 20;
  char *inside = (char *)(((uintptr_t)object / chunk_bytes + 1) * chunk_bytes);
  tell("inside", inside);
  free(opaque(inside));
  memset(object, 1, 11u << 20);
  heap_still_works();
  free(object);
  return 0;
}
