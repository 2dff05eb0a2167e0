// The first address that no program has: the chunk table, which is looked up by lower bits, must not be believed.
// options: errors:abort
// expect-status: SIGABRT|SIGSEGV
// expect-line: free(0x800000000000): not an address of Folio's #foreign-pointer
#include "abuse.h"

int main(void) {
  free(opaque((void *)(uintptr_t)0x800000000000));
  heap_still_works();
  return 0;
}
