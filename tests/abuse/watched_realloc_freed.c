// realloc of an object that was freed, with another free between: nothing is moved.
// watch: yes
// abort-before: went_on
// expect-line: realloc({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(100);
  char *other = (char *)opaque(malloc(100));
  free(object);
  free(other);
  require(realloc(opaque(object), 3000) == NULL, "a refused realloc returns null");
  tell("went_on", object);
  heap_still_works();
  return 0;
}
