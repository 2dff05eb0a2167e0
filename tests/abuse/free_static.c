// An address of the program's own data.
// expect-line: free({p}): not an address of Folio's #foreign-pointer
#include "abuse.h"

static _Alignas(16) char object[64];

int main(void) {
  tell("p", object);
  free(opaque(object));
  heap_still_works();
  return 0;
}
