// realloc of something that is not an object.
// expect-line: realloc({p}): not an address of Folio's #foreign-pointer
#include "abuse.h"

static _Alignas(16) char object[64];

int main(void) {
  tell("p", object);
  require(realloc(opaque(object), 100) == NULL, "a refused realloc returns null");
  heap_still_works();
  return 0;
}
