// In the last destructors of a thread, when its cache is gone: each free goes to the folios, and finds it at once.
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include <limits.h>
#include <pthread.h>

#include "abuse.h"

static pthread_key_t key;
static char *other;

static void destroy(void *round) {
  if ((uintptr_t)round < PTHREAD_DESTRUCTOR_ITERATIONS) {
    require(pthread_setspecific(key, (void *)((uintptr_t)round + 1)) == 0, "pthread_setspecific");
    return;
  }
  char *object = reported_object(176);
  free(object);
  free(other);
  free(opaque(object));
}

static void *thread_main(void *argument) {
  free(opaque(malloc(10)));  // the thread has a cache, which ends in the first round
  require(pthread_setspecific(key, (void *)(uintptr_t)1) == 0, "pthread_setspecific");
  return argument;
}

int main(void) {
  other = (char *)malloc(176);
  require(pthread_key_create(&key, destroy) == 0, "pthread_key_create");
  pthread_t thread;
  require(pthread_create(&thread, NULL, thread_main, NULL) == 0, "pthread_create");
  require(pthread_join(thread, NULL) == 0, "pthread_join");
  heap_still_works();
  return 0;
}
