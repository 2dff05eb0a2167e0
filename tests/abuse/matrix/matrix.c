/* One misuse a run: matrix PATTERN SIZE fresh|warm. check_matrix.py runs all and counts how they end. */
#include "survey.h"

#include <pthread.h>

enum { kBetweenMost = 1000, kWarmFrees = 100000 };

static size_t size;
static int number; /* the pattern's number: how many between, or an offset */
static char *object;
static char *between[kBetweenMost];

static char *fresh(void) { return (char *)opaque(malloc(size)); }

static void *in_thread(void *(*body)(void *)) {
  pthread_t thread;
  void *result = NULL;
  require(pthread_create(&thread, NULL, body, NULL) == 0 && pthread_join(thread, &result) == 0, "thread");
  return result;
}

/* The thread's magazines, and those that wait, are as full as they get. */
static void warm_up(void) {
  static char *batch[1000];
  const unsigned most = size <= 4096 ? 1000 : size <= 1u << 20 ? 50 : 4;
  const unsigned rounds = size <= 40000 ? kWarmFrees / most : 20;
  for (unsigned round = 0; round < rounds; round++) {
    for (unsigned i = 0; i < most; i++) batch[i] = fresh();
    for (unsigned i = 0; i < most; i++) free(batch[i]);
  }
}

static unsigned between_most(void) {
  return size <= 40000 ? (unsigned)number : size <= 1u << 20 && number > 64 ? 64 : number > 7 ? 7 : (unsigned)number;
}

static void get_between(void) {
  for (unsigned i = 0; i < between_most(); i++) between[i] = fresh();
}
static void free_between(void) {
  for (unsigned i = 0; i < between_most(); i++) free(between[i]);
}

static void *free_object(void *unused) {
  free(opaque(object));
  return unused;
}
static void *free_object_and_others(void *unused) {
  free(opaque(object));
  free_between();
  return unused;
}

/* ---- Double frees ---- */

static void twice(void) {
  object = fresh();
  get_between();
  free(object);
  free_between();
  free(opaque(object));
}

/* Objects of another bin are allocated in between, so that the object is not handed out again. */
static void twice_around_mallocs(void) {
  object = fresh();
  char *other = fresh();
  free(object);
  free(other);
  const size_t another = size > 32000 ? 24 : size * 3 + 100;
  for (int i = 0; i < number; i++) own(malloc(another), another);
  free(opaque(object));
}

static void twice_first_elsewhere(void) {
  object = fresh();
  get_between();
  in_thread(free_object);
  free_between();
  free(opaque(object));
}

static void twice_then_elsewhere(void) {
  object = fresh();
  get_between();
  free(object);
  free_between();
  in_thread(free_object);
}

static void twice_both_elsewhere(void) {
  object = fresh();
  get_between();
  in_thread(free_object_and_others);
  in_thread(free_object);
}

static void *allocate_object(void *unused) {
  object = fresh();
  get_between();
  return unused;
}
static void twice_of_ended_threads(void) {
  in_thread(allocate_object);
  free(object);
  free_between();
  free(opaque(object));
}

static void *twice_in_thread(void *unused) {
  twice();
  return unused;
}
static void twice_then_thread_ends(void) { in_thread(twice_in_thread); }

static void twice_then_exit(void) {
  twice();
  exit(kClean);
}

/* ---- Addresses that are no object's start ---- */

static void free_behind_start(int offset) {
  object = fresh();
  own(object, size);
  if (offset >= (int)folio_usable_size(object)) _exit(kDoesNotApply);
  free(opaque(object + offset));
}
static void inside(void) { free_behind_start(number); }
static void inside_half(void) {
  if (size < 16) _exit(kDoesNotApply);
  free_behind_start((int)(size / 2));
}
static void inside_end(void) {
  if (size < 16) _exit(kDoesNotApply);
  free_behind_start((int)(size - 8));
}
static void inside_then_others(void) {
  get_between();
  free_behind_start(size < 32 ? 4 : 16);
  free_between();
}

static void before(void) {
  object = fresh();
  own(object, size);
  folio_place place;
  require(folio_locate(object, &place), "folio_locate");
  char *const address = object - (number == 0 ? (int)(size / 2) : number);
  if (folio_locate(opaque(address), &place) && place.base == address) _exit(kDoesNotApply);
  free(opaque(address));
}

static const uintptr_t kChunk = (uintptr_t)2 << 20;

static void chunk_end(void) {
  object = fresh();
  own(object, size);
  char *const end = (char *)(((uintptr_t)object | (kChunk - 1)) + 1);
  free(opaque(end - number));
}
static void chunk_start(void) {
  object = fresh();
  own(object, size);
  char *const start = (char *)((uintptr_t)object & ~(kChunk - 1));
  folio_place place;
  if (folio_locate(start + number, &place)) _exit(kDoesNotApply);
  free(opaque(start + number));
}

/* A neighbour that was never handed out, or that is free. */
static void neighbour(void) {
  object = fresh();
  own(object, size);
  free(opaque(object + number * (long)folio_usable_size(object)));
}

/* ---- Others ---- */

static void realloc_of_freed(void) {
  object = fresh();
  get_between();
  free(object);
  free_between();
  char *const moved = (char *)realloc(opaque(object), size * 2 + 100);
  if (moved != NULL) own(moved, size * 2 + 100);
}
static void realloc_inside(void) {
  object = fresh();
  own(object, size);
  if (number >= (int)folio_usable_size(object)) _exit(kDoesNotApply);
  char *const moved = (char *)realloc(opaque(object + number), size * 2 + 100);
  if (moved != NULL) own(moved, size * 2 + 100);
}
static void sized_too_large(void) {
  object = fresh();
  folio_free_sized(object, opaque_size(size * 2 + 100));
}
static void sized_too_small(void) {
  object = fresh();
  folio_free_sized(object, opaque_size(size / 3));
}
static void sized_twice(void) {
  object = fresh();
  get_between();
  folio_free_sized(object, size);
  free_between();
  folio_free_sized(opaque(object), size);
}

static const struct {
  const char *name;
  void (*run)(void);
} patterns[] = {
    {"twice", twice},
    {"twice_around_mallocs", twice_around_mallocs},
    {"twice_first_elsewhere", twice_first_elsewhere},
    {"twice_then_elsewhere", twice_then_elsewhere},
    {"twice_both_elsewhere", twice_both_elsewhere},
    {"twice_of_ended_threads", twice_of_ended_threads},
    {"twice_then_thread_ends", twice_then_thread_ends},
    {"twice_then_exit", twice_then_exit},
    {"inside", inside},
    {"inside_half", inside_half},
    {"inside_end", inside_end},
    {"inside_then_others", inside_then_others},
    {"before", before},
    {"chunk_end", chunk_end},
    {"chunk_start", chunk_start},
    {"neighbour", neighbour},
    {"realloc_of_freed", realloc_of_freed},
    {"realloc_inside", realloc_inside},
    {"sized_too_large", sized_too_large},
    {"sized_too_small", sized_too_small},
    {"sized_twice", sized_twice},
};

/* PATTERN is a name, with a number behind a colon where it takes one. */
int main(int argc, char **argv) {
  require(argc == 4, "three arguments");
  size = opaque_size(strtoul(argv[2], NULL, 10));
  char *const colon = strchr(argv[1], ':');
  if (colon != NULL) number = atoi(colon + 1);
  const size_t length = colon != NULL ? (size_t)(colon - argv[1]) : strlen(argv[1]);
  for (unsigned i = 0; i < 10; i++) own(malloc(size), size); /* bystanders */
  if (strcmp(argv[3], "warm") == 0) warm_up();
  for (unsigned i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
    if (strncmp(patterns[i].name, argv[1], length) != 0 || patterns[i].name[length] != 0) continue;
    patterns[i].run();
    survey(size);
    return kClean;
  }
  require(0, "a pattern of that name");
}
