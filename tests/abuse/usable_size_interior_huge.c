// malloc_usable_size of the middle of a huge object.
// expect-line: malloc_usable_size({inside}): not the start of an object: inside a huge object of {size} bytes at {base}
// #invalid-free
#include <malloc.h>

#include "abuse.h"

int main(void) {
  char *object = reported_object(9u << 20);
  tell("inside", object + (3u << 20));
  require(malloc_usable_size(opaque(object + (3u << 20))) == 0, "no usable size");
  heap_still_works();
  free(object);
  return 0;
}
