// The C23 name without a prefix.
// expect-line: free_sized({p}): size 3000 given, but the object has {size} usable bytes (bin {bin}) #wrong-size
#include "abuse.h"

extern void free_sized(void *object, size_t size);  // glibc 2.36 has no declaration yet

int main(void) {
  char *object = reported_object(100);
  free_sized(opaque(object), opaque_size(3000));
  heap_still_works();
  free(object);
  return 0;
}
