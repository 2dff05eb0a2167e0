// Other frees lie between: when the thread that calls exit had both, they are found there.
// watch: no
// expect-line: exit({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

enum { kOthers = 7, kWarm = 200 };

int main(void) {
  // So that the thread has room for them in one magazine.
  static char *warm[kWarm];
  for (int i = 0; i < kWarm; i++) warm[i] = (char *)opaque(malloc(64));
  for (int i = 0; i < kWarm; i++) free(warm[i]);
  char *object = reported_object(64);
  char *others[kOthers];
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(64));
  free(object);
  for (int i = 0; i < kOthers; i++) free(others[i]);
  free(opaque(object));
  return 0;
}
