/* Writes what "json", "text", "xml" or "stats" names to stdout, with live objects of known sizes and a second thread.
 */
#include <folio/folio.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kObjects = 20000, kBytes = 600 };

static void *objects[kObjects];
static pthread_barrier_t barrier;

static void to_stdout(void *context, const char *text, size_t length) { fwrite(text, 1, length, (FILE *)context); }

static void *idle(void *argument) {
  void *object = malloc(20000);
  pthread_barrier_wait(&barrier);
  pthread_barrier_wait(&barrier);
  free(object);
  return argument;
}

static void dump(const char *what) {
  if (strcmp(what, "json") == 0) folio_stats_json(to_stdout, stdout);
  if (strcmp(what, "text") == 0) folio_stats_text(to_stdout, stdout);
  if (strcmp(what, "xml") == 0) malloc_info(0, stdout);
  if (strcmp(what, "malloc_stats") == 0) malloc_stats();
}

int main(int count, char **arguments) {
  pthread_t thread;
  pthread_barrier_init(&barrier, NULL, 2);
  if (pthread_create(&thread, NULL, idle, NULL) != 0) return 1;
  pthread_barrier_wait(&barrier);
  for (size_t i = 0; i < kObjects; i++) {
    objects[i] = malloc(kBytes);
    if (objects[i] == NULL) return 2;
    memset(objects[i], 1, kBytes);
  }
  void *huge = malloc(10u << 20);
  if (huge == NULL) return 3;
  for (int i = 1; i < count; i++) dump(arguments[i]);
  pthread_barrier_wait(&barrier);
  pthread_join(thread, NULL);
  free(huge);
  return 0;
}
