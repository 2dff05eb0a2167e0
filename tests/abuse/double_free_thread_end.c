// A thread frees an object twice and ends: its magazines are handed on, and found wrong when they are emptied.
// expect-line: *({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include <pthread.h>

#include "abuse.h"

static void *free_twice(void *object) {
  void *other = malloc(48);
  free(object);
  free(other);
  free(opaque(object));
  return NULL;
}

int main(void) {
  char *object = reported_object(48);
  pthread_t thread;
  require(pthread_create(&thread, NULL, free_twice, object) == 0, "pthread_create");
  require(pthread_join(thread, NULL) == 0, "pthread_join");
  folio_collect();
  heap_still_works();
  return 0;
}
