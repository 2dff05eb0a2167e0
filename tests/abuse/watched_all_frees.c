// watch:1000000000: each free is watched, after any number of others too.
// options: errors:abort,watch:1000000000
// abort-before: went_on
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

enum { kOthers = 100000 };

int main(void) {
  static char *others[kOthers];
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(64));
  for (int i = 0; i < kOthers; i++) free(others[i]);
  char *object = reported_object(64);
  char *other = (char *)opaque(malloc(64));
  free(object);
  free(other);
  free(opaque(object));
  tell("went_on", object);
  return 0;
}
