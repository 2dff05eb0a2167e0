// Two threads free the same object: found at the latest when both caches have been emptied. Of a size that starting a
// thread does not itself allocate.
// expect-line: *({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include <pthread.h>

#include "abuse.h"

static void *free_and_collect(void *object) {
  free(object);
  folio_collect();
  return NULL;
}

int main(void) {
  char *object = reported_object(1200);
  free(object);
  pthread_t thread;
  require(pthread_create(&thread, NULL, free_and_collect, opaque(object)) == 0, "pthread_create");
  require(pthread_join(thread, NULL) == 0, "pthread_join");
  folio_collect();
  heap_still_works();
  return 0;
}
