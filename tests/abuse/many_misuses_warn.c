// errors:warn: each misuse has its own line, and the program goes on.
// options: errors:warn,watch:0
// expect-status: 0
// expect-line: free({stack}): not an address of Folio's #foreign-pointer
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
// expect-line: realloc({stack}): not an address of Folio's #foreign-pointer
// expect-line: folio_free_sized({p}): size 999999 given, but the object has {size} usable bytes (bin {bin}) #wrong-size
#include "abuse.h"

int main(void) {
  _Alignas(16) char foreign[64] = {0};
  tell("stack", foreign);
  free(opaque(foreign));
  char *object = reported_object(64);
  free(object);
  free(opaque(object));
  free(opaque(object));
  require(realloc(opaque(foreign), 10) == NULL, "a refused realloc returns null");
  char *again = (char *)malloc(64);
  require(again == object, "the object freed last is handed out next");
  folio_free_sized(again, opaque_size(999999));
  heap_still_works();
  free(again);
  return 0;
}
