// With errors:ignore nothing is said; the fault ends the process all the same.
// options: guard:1,errors:ignore
// expect-status: SIGSEGV
#include "abuse.h"

int main(void) {
  char *object = reported_object(200);
  free(object);
  ((char *)opaque(object))[0] = 1;
  return 0;
}
