// A thread frees an object twice, with others between, and ends: found there, before another thread can have it.
// watch: no
// abort-before: ended
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include <pthread.h>

#include "abuse.h"

enum { kOthers = 5, kWarm = 200 };

static void *free_twice(void *unused) {
  // So that the thread has room for them in one magazine.
  static char *warm[kWarm], *others[kOthers];
  for (int i = 0; i < kWarm; i++) warm[i] = (char *)opaque(malloc(64));
  for (int i = 0; i < kWarm; i++) free(warm[i]);
  char *object = reported_object(64);
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(64));
  free(object);
  for (int i = 0; i < kOthers; i++) free(others[i]);
  free(opaque(object));
  return unused;
}

int main(void) {
  pthread_t thread;
  require(pthread_create(&thread, NULL, free_twice, NULL) == 0, "pthread_create");
  require(pthread_join(thread, NULL) == 0, "pthread_join");
  tell("ended", &thread);
  heap_still_works();
  return 0;
}
