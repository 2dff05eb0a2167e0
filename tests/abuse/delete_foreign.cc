// delete of an object with static storage.
// expect-line: operator delete({p}): not an address of Folio's #foreign-pointer
#include <new>

#include "abuse.h"

namespace {
alignas(16) char object[64];
}

int main() {
  tell("p", object);
  ::operator delete(opaque(object));
  heap_still_works();
  return 0;
}
