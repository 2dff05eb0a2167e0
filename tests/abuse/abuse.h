/* What the misuse programs share: hiding pointers from the compiler, telling check.py the facts of an object, and the
 * proof that the heap still serves everything after a misuse that did not abort. */
#ifndef FOLIO_TESTS_ABUSE_ABUSE_H
#define FOLIO_TESTS_ABUSE_ABUSE_H

#include <folio/folio.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The same pointer, but the compiler no longer knows where it came from: it would warn of the misuse or optimise on
 * it being undefined. */
static inline void *opaque(const volatile void *pointer) {
  uintptr_t address = (uintptr_t)pointer;
  __asm__ volatile("" : "+r"(address) : : "memory");
  return (void *)address;
}

static inline size_t opaque_size(size_t size) {
  __asm__ volatile("" : "+r"(size));
  return size;
}

/* Ends the program with a status that no misuse leads to. */
static inline void require(int holds, const char *what) {
  if (holds) return;
  char line[200];
  int length = snprintf(line, sizeof line, "failed=%s\n", what);
  if (write(STDOUT_FILENO, line, (size_t)length) < 0) _exit(4);
  _exit(3);
}

/* Writes "name=0x..." for check.py, which puts it for {name} into the expected line. Not through stdio: its buffer
 * would be lost in the abort. */
static inline void tell(const char *name, const volatile void *pointer) {
  char line[100];
  int length = snprintf(line, sizeof line, "%s=0x%llx\n", name, (unsigned long long)(uintptr_t)pointer);
  require(write(STDOUT_FILENO, line, (size_t)length) == length, "write");
}

/* Tells the address (p), the start (base), the usable size (size) and the bin (bin) of the object at `pointer`. */
static inline void tell_object(const volatile void *pointer) {
  folio_place place;
  require(folio_locate(opaque(pointer), &place), "folio_locate");
  char line[200];
  int length =
      snprintf(line, sizeof line, "p=0x%llx\nbase=0x%llx\nsize=%zu\nbin=%u\n", (unsigned long long)(uintptr_t)pointer,
               (unsigned long long)(uintptr_t)place.base, place.usable_size, place.bin);
  require(write(STDOUT_FILENO, line, (size_t)length) == length, "write");
}

/* A new object, of which check.py has been told. */
static inline char *reported_object(size_t size) {
  char *object = (char *)opaque(malloc(size));
  require(object != NULL, "malloc");
  tell_object(object);
  return object;
}

/* For guard:1, of which check.py has been told: at the end of its page, with no byte left behind it where the size is a
 * multiple of 16; or at the start. */
static inline char *reported_guarded_object(size_t size, int at_end) {
  for (;;) {
    char *object = (char *)opaque(malloc(size));
    require(object != NULL, "malloc");
    if (at_end ? ((uintptr_t)object + size) % 4096 == 0 : (uintptr_t)object % 4096 == 0) {
      tell_object(object);
      return object;
    }
    free(object);
  }
}

enum { kHeapObjects = 4000 };

/* Sizes over the small and medium bins, some large, a few huge; small ones most often. */
static inline size_t heap_size(unsigned number) {
  if (number % 2000 == 1999) return 9u << 20;
  if (number % 500 == 499) return 3u << 20;
  if (number % 50 == 49) return 100u * 1024;
  if (number % 10 == 9) return 5000 + number;
  return 1 + number % 600;
}

/* Objects of every kind keep what is written to them: none is handed out twice, none overlaps another. */
static inline void heap_still_works(void) {
  static unsigned char *objects[kHeapObjects];
  for (int round = 0; round < 2; round++) {
    for (unsigned i = 0; i < kHeapObjects; i++) {
      objects[i] = (unsigned char *)malloc(heap_size(i));
      require(objects[i] != NULL, "malloc after the misuse");
      memset(objects[i], (int)(i * 7 % 251), heap_size(i));
    }
    for (unsigned i = 0; i < kHeapObjects; i++) {
      /* The first byte is right, and each is like the one before it: byte by byte it would take most of the test. */
      require(objects[i][0] == i * 7 % 251 && memcmp(objects[i], objects[i] + 1, heap_size(i) - 1) == 0,
              "contents after the misuse");
    }
    for (unsigned i = 0; i < kHeapObjects; i++) free(objects[i]);
    folio_collect();
  }
}

#endif
