// A guarded object is written to after a realloc has moved it.
// options: guard:1
// expect-line: write({at}): use after free: byte 0 of a guarded object of {size} bytes at {p} #guarded-objects
// expect-stacks: accessed, allocated, freed
// expect-status: SIGSEGV
#include "abuse.h"

int main(void) {
  char *object = reported_object(200);
  char *moved = (char *)realloc(opaque(object), 5000);
  require(moved != NULL && moved != object, "realloc");
  tell("at", object);
  ((char *)opaque(object))[0] = 1;
  return 0;
}
