// Behind the usable bytes of a large object, in the granule of 16 KiB that is its own all the same.
// expect-line: free({inner}): not the start of an object: inside a large object of {size} bytes at {base} #invalid-free
#include "abuse.h"

#include <malloc.h>

int main(void) {
  char *object = reported_object(33000);
  char *behind = object + malloc_usable_size(object);
  tell("inner", behind);
  free(opaque(behind));
  memset(object, 1, 33000);
  heap_still_works();
  free(object);
  return 0;
}
