// A page of a large object.
// expect-line: free({inner}): not the start of an object: inside a large object of {size} bytes at {base} #invalid-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(300 * 1024);
  tell("inner", object + 8192);
  free(opaque(object + 8192));
  memset(object, 1, 300 * 1024);
  heap_still_works();
  free(object);
  return 0;
}
