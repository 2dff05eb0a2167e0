/* A program that allocates where few expect it: before every constructor (preinit_array), in constructors and
 * destructors of all priorities, in atexit functions, and after its main thread has ended. Each object lives from one
 * stage to the last. Prints one line a stage; check_programs.py compares them. */
#include <folio/folio.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kStages = 8, kBytes = 3000 };

static unsigned char *objects[kStages];

/* A new object for a stage, and those of earlier stages as they were. With write(2): stdio may not be ready. */
static void stage(unsigned number, const char *name) {
  objects[number] = (unsigned char *)malloc(kBytes);
  unsigned char *grown = (unsigned char *)realloc(calloc(1, 10), 5000 * (size_t)(number + 1));
  int good = objects[number] != NULL && grown != NULL && folio_is_ours(objects[number]) && folio_is_ours(grown);
  free(grown);
  if (good) memset(objects[number], (int)number + 1, kBytes);
  for (unsigned s = 0; s <= number && good; s++) {
    for (size_t i = 0; objects[s] != NULL && i < kBytes; i++) good = good && objects[s][i] == s + 1;
  }
  char line[64];
  int length = snprintf(line, sizeof line, "%s %s\n", name, good ? "good" : "bad");
  if (write(STDOUT_FILENO, line, (size_t)length) != length) _exit(2);
}

static void preinit(int count, char **arguments, char **environment) {
  (void)count;
  (void)arguments;
  (void)environment;
  stage(0, "preinit");
}
typedef void initializer(int, char **, char **);
__attribute__((section(".preinit_array"), used)) static initializer *const preinit_entry = preinit;

__attribute__((constructor(101))) static void first_constructor(void) { stage(1, "constructor 101"); }
__attribute__((constructor)) static void last_constructor(void) { stage(2, "constructor"); }
__attribute__((destructor)) static void first_destructor(void) { stage(6, "destructor"); }
__attribute__((destructor(101))) static void last_destructor(void) {
  stage(7, "destructor 101");
  for (int i = 0; i < kStages; i++) free(objects[i]);
  folio_collect();
}

static void at_exit(void) { stage(5, "atexit"); }

static void *other_thread(void *main_thread) {
  pthread_t joined;
  memcpy(&joined, main_thread, sizeof joined);
  free(main_thread);
  if (pthread_join(joined, NULL) != 0) _exit(3);
  stage(4, "after main thread");
  exit(7);
}

int main(void) {
  stage(3, "main");
  atexit(at_exit);
  pthread_t *self = (pthread_t *)malloc(sizeof *self);
  if (self == NULL) return 4;
  *self = pthread_self();
  pthread_t other;
  if (pthread_create(&other, NULL, other_thread, self) != 0) return 5;
  pthread_exit(NULL);
}
