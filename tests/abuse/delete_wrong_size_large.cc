// Sized delete of a large object with more bytes than it has.
// expect-line: operator delete({p}): size 5000000 given, but the object has {size} usable bytes #wrong-size
#include <new>

#include "abuse.h"

int main() {
  void *object = ::operator new(opaque_size(100000));
  tell_object(object);
  ::operator delete(opaque(object), opaque_size(5000000));
  heap_still_works();
  ::operator delete(object);
  return 0;
}
