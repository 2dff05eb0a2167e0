// delete of the object deleted last.
// expect-line: operator delete({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include <new>

#include "abuse.h"

int main() {
  void *object = ::operator new(opaque_size(72));
  tell_object(object);
  ::operator delete(object);
  ::operator delete(opaque(object));
  heap_still_works();
  return 0;
}
