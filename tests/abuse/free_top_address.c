// The last address of user space, where the chunk table ends.
// expect-line: free(0x7ffffffff000): not an address of Folio's #foreign-pointer
#include "abuse.h"

int main(void) {
  free(opaque((void *)(uintptr_t)0x7ffffffff000));
  heap_still_works();
  return 0;
}
