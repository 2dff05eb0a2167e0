// The middle of an object: found at once while a process's frees are watched.
// watch: yes
// abort-before: went_on
// expect-line: free({inside}): not the start of an object: inside a {size}-byte object (bin {bin})
// at {base} #invalid-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(3000);
  tell("inside", object + 1500);
  free(opaque(object + 1500));
  tell("went_on", object);
  heap_still_works();
  free(object);
  return 0;
}
