// Other frees lie between: when the thread that calls exit had both, they are found there.
// watch: no
// expect-line: exit({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

enum { kOthers = 7 };

int main(void) {
  char *object = told_object(64);
  char *others[kOthers];
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(64));
  free(object);
  for (int i = 0; i < kOthers; i++) free(others[i]);
  free(opaque(object));
  return 0;
}
