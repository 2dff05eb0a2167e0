// An interior pointer that is less aligned than the bin's objects is found when its magazine is full and leaves the
// thread. abort-before: overflowed
// expect-line: *({inside}): not the start of an object: inside a {size}-byte object (bin {bin}) at {base} #invalid-free
#include "abuse.h"

enum { kOthers = 1024 };

int main(void) {
  static char *others[kOthers];
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(96));
  char *object = reported_object(96);
  tell("inside", object + 16);
  free(opaque(object + 16));
  for (int i = 0; i < kOthers; i++) free(others[i]);
  tell("overflowed", object);
  heap_still_works();
  free(object);
  return 0;
}
