// A thousand other frees of its size lie between both: found at once while a process's frees are watched.
// watch: yes
// abort-before: went_on
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

enum { kOthers = 1000 };

int main(void) {
  static char *others[kOthers];
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(200));
  char *object = reported_object(200);
  free(object);
  for (int i = 0; i < kOthers; i++) free(others[i]);
  free(opaque(object));
  tell("went_on", object);
  heap_still_works();
  return 0;
}
