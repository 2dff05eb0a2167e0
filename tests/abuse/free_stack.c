// An address of the stack.
// expect-line: free({p}): not an address of Folio's #foreign-pointer
#include "abuse.h"

int main(void) {
  _Alignas(16) char object[64] = {0};
  tell("p", object);
  free(opaque(object));
  heap_still_works();
  return 0;
}
