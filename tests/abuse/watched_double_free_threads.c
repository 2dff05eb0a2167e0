// Freed by a thread that has ended, and by another, with other frees between.
// watch: yes
// abort-before: went_on
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include <pthread.h>

#include "abuse.h"

enum { kOthers = 64 };

static char *others[kOthers];

static void *free_with_others(void *object) {
  free(object);
  for (int i = 0; i < kOthers; i++) free(others[i]);
  return NULL;
}

int main(void) {
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(24));
  char *object = reported_object(24);
  pthread_t thread;
  require(pthread_create(&thread, NULL, free_with_others, object) == 0, "pthread_create");
  require(pthread_join(thread, NULL) == 0, "pthread_join");
  free(opaque(object));
  tell("went_on", object);
  heap_still_works();
  return 0;
}
