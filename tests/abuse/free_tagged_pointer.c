// A live object with a tag in the upper bits of its address, as some programs keep: not the object's address.
// options: errors:abort
// expect-status: SIGABRT|SIGSEGV
// expect-line: free({tagged}): not an address of Folio's #foreign-pointer
#include "abuse.h"

int main(void) {
  char *object = reported_object(64);
  uintptr_t tagged = (uintptr_t)object | (uintptr_t)1 << 48;
  tell("tagged", (void *)tagged);
  free(opaque((void *)tagged));
  heap_still_works();
  return 0;
}
