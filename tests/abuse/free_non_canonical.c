// Bytes of text taken for a pointer: as free_kernel_address.c.
// options: errors:abort
// expect-status: SIGABRT|SIGSEGV
// expect-line: free(0x6f77206f6c6c6568): not an address of Folio's #foreign-pointer
#include "abuse.h"

int main(void) {
  free(opaque((void *)(uintptr_t)0x6f77206f6c6c6568));
  heap_still_works();
  return 0;
}
