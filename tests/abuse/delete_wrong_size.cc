// Sized delete with more bytes than the object has: a derived class deleted as a larger one.
// expect-line: operator delete({p}): size 500 given, but the object has {size} usable bytes (bin {bin}) #wrong-size
#include <new>

#include "abuse.h"

int main() {
  void *object = ::operator new(opaque_size(48));
  tell_object(object);
  ::operator delete(opaque(object), opaque_size(500));
  heap_still_works();
  ::operator delete(object);
  return 0;
}
