// The address of code: metadata found through it must not be believed.
// expect-line: free({p}): not an address of Folio's #foreign-pointer
#include "abuse.h"

int main(void) {
  void *code = opaque((const void *)(uintptr_t)&main);
  tell("p", code);
  free(code);
  heap_still_works();
  return 0;
}
