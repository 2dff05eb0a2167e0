// A guarded object is read after it was freed, by another thread, and after a hundred others were.
// options: guard:1
// expect-line: read({at}): use after free: byte 40 of a guarded object of {size} bytes at {p} #guarded-objects
// expect-stacks: accessed, allocated, freed
// expect-status: SIGSEGV
#include <pthread.h>

#include "abuse.h"

enum { kOthers = 60 };

static void *free_it(void *object) {
  free(object);
  return NULL;
}

int main(void) {
  char *object = reported_object(200);
  pthread_t thread;
  require(pthread_create(&thread, NULL, free_it, object) == 0 && pthread_join(thread, NULL) == 0, "thread");
  for (int i = 0; i < kOthers; i++) free(opaque(malloc(200)));
  tell("at", object + 40);
  return ((char *)opaque(object))[40] == 1;
}
