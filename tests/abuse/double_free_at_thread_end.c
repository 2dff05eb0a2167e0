// A thread frees an object twice, with others between, and ends: found there, before another thread can have it.
// watch: no
// abort-before: ended
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include <pthread.h>

#include "abuse.h"

enum { kOthers = 5 };

static char *others[kOthers];

static void *free_twice(void *object) {
  free(object);
  for (int i = 0; i < kOthers; i++) free(others[i]);
  free(opaque(object));
  return NULL;
}

int main(void) {
  // Of a size that starting a thread does not itself allocate.
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(448));
  char *object = told_object(448);
  pthread_t thread;
  require(pthread_create(&thread, NULL, free_twice, object) == 0, "pthread_create");
  require(pthread_join(thread, NULL) == 0, "pthread_join");
  tell("ended", object);
  heap_still_works();
  return 0;
}
