/* What the misuse matrix and the random faults share: a table of the objects that the program owns, and the survey at
 * the end, which tells whether the heap is still right. Exit status: 0 clean, 10 corrupt, 77 does not apply. */
#ifndef FOLIO_TESTS_ABUSE_SURVEY_H
#define FOLIO_TESTS_ABUSE_SURVEY_H

#include "../abuse.h"

enum { kClean = 0, kCorrupt = 10, kDoesNotApply = 77, kOwnedMost = 60000, kSurveyed = 20000 };

struct owned {
  unsigned char *start;
  size_t size;
  unsigned char mark;
};

static struct owned owned[kOwnedMost];
static unsigned owned_count;

static inline void corrupt(const char *what) {
  char line[100];
  const int length = snprintf(line, sizeof line, "corrupt=%s\n", what);
  if (write(STDOUT_FILENO, line, (size_t)length) < 0) _exit(4);
  _exit(kCorrupt);
}

/* Small objects wholly, larger ones at their ends and in the middle of each page. */
static inline size_t mark_step(size_t size, size_t at) { return size <= 512 || at < 64 || at + 64 >= size ? 1 : 509; }

static inline void mark(const struct owned *o) {
  for (size_t at = 0; at < o->size; at += mark_step(o->size, at)) o->start[at] = (unsigned char)(o->mark + at);
}

static inline void check_marked(const struct owned *o) {
  for (size_t at = 0; at < o->size; at += mark_step(o->size, at)) {
    if (o->start[at] != (unsigned char)(o->mark + at)) corrupt("contents");
  }
}

static inline unsigned own(void *start, size_t size) {
  require(start != NULL, "malloc");
  require(owned_count < kOwnedMost, "room for what is owned");
  if ((uintptr_t)start % (size > 8 ? 16 : 8) != 0) corrupt("alignment");
  owned[owned_count] = (struct owned){(unsigned char *)start, size, (unsigned char)(owned_count * 37 + 11)};
  mark(&owned[owned_count]);
  return owned_count++;
}

static inline void disown(unsigned number) {
  check_marked(&owned[number]);
  owned[number] = owned[--owned_count];
}

static inline int by_start(const void *a, const void *b) {
  const struct owned *x = (const struct owned *)a, *y = (const struct owned *)b;
  return (x->start > y->start) - (x->start < y->start);
}

static inline void check_owned(void) {
  static struct owned sorted[kOwnedMost];
  for (unsigned i = 0; i < owned_count; i++) check_marked(&owned[i]);
  memcpy(sorted, owned, owned_count * sizeof owned[0]);
  qsort(sorted, owned_count, sizeof sorted[0], by_start);
  for (unsigned i = 0; i + 1 < owned_count; i++) {
    if (sorted[i].start + sorted[i].size > sorted[i + 1].start) corrupt("overlap");
  }
  for (unsigned i = 0; i < owned_count; i++) {
    folio_place place;
    if (!folio_locate(owned[i].start, &place)) corrupt("outside");
    if (place.base != owned[i].start || place.usable_size < owned[i].size) corrupt("inside of another");
  }
}

static inline size_t survey_size(unsigned number, size_t size) {
  if (number % 4000 == 3999) return 9u << 20;
  if (number % 1000 == 999) return 1u << 20;
  if (number % 100 == 99) return 40000;
  if (number % 2 == 0 && (size <= 4096 || number % 64 == 0)) return size;
  if (number % 20 == 19) return 600 + number % 9000;
  return 1 + number % 600;
}

/* All that the program owns keeps what is in it, while many more objects of its size and of all others come; then all
 * go, and all that is cached with them. */
static inline void survey(size_t size) {
  const unsigned first = owned_count;
  for (unsigned i = 0; i < kSurveyed; i++) own(malloc(survey_size(i, size)), survey_size(i, size));
  check_owned();
  while (owned_count > first) {
    unsigned char *start = owned[owned_count - 1].start;
    disown(owned_count - 1);
    free(start);
  }
  for (unsigned i = 0; i < kSurveyed / 10; i++) own(malloc(survey_size(i, size)), survey_size(i, size));
  check_owned();
  while (owned_count > 0) {
    unsigned char *start = owned[owned_count - 1].start;
    disown(owned_count - 1);
    free(start);
  }
}

#endif
