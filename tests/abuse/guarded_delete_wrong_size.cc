// A guarded object is deleted with more bytes than it has.
// options: guard:1,errors:warn
// expect-line: operator delete({p}): size 201 given, but the object has 200 usable bytes #wrong-size
// expect-status: 0
#include <new>

#include "abuse.h"

int main() {
  void *object = opaque(operator new(200));
  tell_object(object);
  operator delete(opaque(object), opaque_size(201));
  operator delete(opaque(object), opaque_size(200));
  heap_still_works();
  return 0;
}
