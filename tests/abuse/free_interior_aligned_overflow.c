// An interior pointer that is aligned as the bin's objects are is found, too, when its magazine is full and leaves the
// thread.
// watch: no
// abort-before: overflowed
// expect-line: *({inside}): not the start of an object: inside a {size}-byte object (bin {bin}) at {base} #invalid-free
#include "abuse.h"

enum { kOthers = 1024 };

int main(void) {
  static char *others[kOthers];
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(96));
  char *object = reported_object(96);
  tell("inside", object + 32);
  free(opaque(object + 32));
  for (int i = 0; i < kOthers; i++) free(others[i]);
  tell("overflowed", object);
  heap_still_works();
  free(object);
  return 0;
}
