// The first address beyond what the chunk table covers: whatever lies behind the table must not be taken for entries.
// options: errors:abort
// expect-status: SIGABRT|SIGSEGV
// expect-line: free(0x800000000000): not an address of Folio's #foreign-pointer
#include "abuse.h"

int main(void) {
  free(opaque((void *)(uintptr_t)0x800000000000));
  heap_still_works();
  return 0;
}
