// Found without folio_collect() when the magazine that holds both is full and leaves its thread.
// abort-before: overflowed
// expect-line: *({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

// More than two magazines hold, so that the one with the double free must have gone.
enum { kOthers = 1024 };

static char *others[kOthers];

static void burst(void) {
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(64));
}

int main(void) {
  // Caches that adapt hold few objects at first, and both frees should lie in one magazine.
  for (int round = 0; round < 50; round++) {
    burst();
    for (int i = 0; i < kOthers; i++) free(others[i]);
  }
  burst();
  char *object = reported_object(64);
  free(object);
  free(others[0]);
  free(opaque(object));
  for (int i = 1; i < kOthers; i++) free(others[i]);
  tell("overflowed", object);
  heap_still_works();
  return 0;
}
