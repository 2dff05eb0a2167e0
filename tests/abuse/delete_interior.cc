// Sized delete looks for the start at once: a base class that is not the first one, without a virtual destructor.
// expect-line: operator delete({inside}): not the start of an object: inside a {size}-byte object (bin {bin}) at {base}
// #invalid-free
#include <new>

#include "abuse.h"

int main() {
  char *object = static_cast<char *>(::operator new(opaque_size(128)));
  tell_object(object);
  tell("inside", object + 64);
  ::operator delete(opaque(object + 64), opaque_size(64));
  heap_still_works();
  ::operator delete(object);
  return 0;
}
