// A large object (a run of pages). The message has the size of its slot, of which a random start may use less.
// expect-line: *({p}): double free of a ?-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *object = told_object(100 * 1024);
  memset(object, 1, 100 * 1024);
  free(object);
  free(opaque(object));
  folio_collect();
  heap_still_works();
  return 0;
}
