// malloc_usable_size of something that is not an object: 0 where it does not abort.
// expect-line: malloc_usable_size({p}): not an address of Folio's #foreign-pointer
#include <malloc.h>

#include "abuse.h"

int main(void) {
  _Alignas(16) char object[64] = {0};
  tell("p", object);
  require(malloc_usable_size(opaque(object)) == 0, "no usable size");
  heap_still_works();
  return 0;
}
