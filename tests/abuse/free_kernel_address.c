// MAP_FAILED: an address beyond user space, and so beyond the chunk table. It ends the process, by the line or by the
// fault that any use of such an address is.
// options: errors:abort
// expect-status: SIGABRT|SIGSEGV
// expect-line: free(0xffffffffffffffff): not an address of Folio's #foreign-pointer
#include "abuse.h"

int main(void) {
  free(opaque((void *)UINTPTR_MAX));
  heap_still_works();
  return 0;
}
