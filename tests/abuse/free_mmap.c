// A mapping of the program's own.
// expect-line: free({p}): not an address of Folio's #foreign-pointer
#include <sys/mman.h>

#include "abuse.h"

int main(void) {
  size_t length = 8u << 20;
  void *object = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(object != MAP_FAILED, "mmap");
  tell("p", object);
  free(opaque(object));
  memset(object, 1, length);
  heap_still_works();
  require(munmap(object, length) == 0, "munmap");
  return 0;
}
