// The sized delete of arrays.
// expect-line: operator delete[]({p}): size 70000 given, but the object has {size} usable bytes (bin {bin}) #wrong-size
#include <new>

#include "abuse.h"

int main() {
  void *object = ::operator new[](opaque_size(480));
  tell_object(object);
  ::operator delete[](opaque(object), opaque_size(70000));
  heap_still_works();
  ::operator delete[](object);
  return 0;
}
