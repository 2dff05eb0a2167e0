// Garbage near null: an error code taken for a pointer.
// expect-line: free(0x10): not an address of Folio's #foreign-pointer
#include "abuse.h"

int main(void) {
  free(opaque((void *)(uintptr_t)0x10));
  heap_still_works();
  return 0;
}
