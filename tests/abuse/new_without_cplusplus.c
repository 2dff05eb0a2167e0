// operator new out of memory where nothing can throw std::bad_alloc: not a misuse, so `errors` does not matter.
// options: errors:ignore
// expect-line: operator new(4611686018427387904): out of memory, and no C++ library in reach to throw std::bad_alloc
// #no-bad-alloc
#include "abuse.h"

extern void *_Znwm(size_t size);  // operator new(size_t)

int main(void) {
  char *small = (char *)_Znwm(opaque_size(100));
  require(folio_is_ours(small), "a small one is served");
  free(small);
  return _Znwm(opaque_size((size_t)1 << 62)) == NULL;
}
