// Two limits, to preload as if they were allocators: what a program takes when malloc and free cost nothing, or little.
//
//   -DIDEAL_STACK   a stack of free objects for each thread and size class, unbounded: pushed to by whoever frees, with
//                   no word shared between threads, and nothing ever given back
//   otherwise       bump: each malloc takes the next bytes, free does nothing
//
// Neither can be used for anything else: memory only grows, up to 8 GiB, and a fork in the middle is not looked after.
// Sizes lie in a header of 16 bytes before each object.
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define LOCAL __thread __attribute__((tls_model("initial-exec")))
#define CHUNK ((size_t)64 << 20)
#define MOST ((size_t)8 << 30)
#define HEADER 16
#define CLASSES 256

typedef struct Header {
  size_t usable;
  uint32_t class_;
  uint32_t back;  // from the object to where its memory starts
} Header;

static LOCAL char *next_byte, *end_byte;
static size_t mapped;

static Header *header_of(void *object) { return (Header *)((char *)object - HEADER); }

static char *take(size_t bytes) {
  if ((size_t)(end_byte - next_byte) < bytes) {
    size_t size = bytes > CHUNK / 4 ? bytes : CHUNK;
    if (__atomic_add_fetch(&mapped, size, __ATOMIC_RELAXED) > MOST) {
      errno = ENOMEM;
      return NULL;
    }
    char *fresh = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fresh == MAP_FAILED) {
      errno = ENOMEM;
      return NULL;
    }
    if (size != CHUNK) return fresh;
    next_byte = fresh;
    end_byte = fresh + size;
  }
  char *start = next_byte;
  next_byte += bytes;
  return start;
}

#ifdef IDEAL_STACK
static LOCAL void *stacks[CLASSES];

// Multiples of 16 up to 128, then four for each doubling.
static uint32_t class_of(size_t size) {
  if (size <= 128) return (uint32_t)((size + 15) / 16);
  unsigned log = 63u - (unsigned)__builtin_clzl(size - 1);
  return 8 + (log - 7) * 4 + (uint32_t)((size - 1) >> (log - 2) & 3) + 1;
}
static size_t size_of(uint32_t class_) {
  if (class_ <= 8) return class_ == 0 ? 16 : class_ * (size_t)16;
  unsigned log = 7 + (class_ - 9) / 4;
  return ((size_t)1 << log) + ((size_t)((class_ - 9) % 4 + 1) << (log - 2));
}
#endif

static void *allocate(size_t size) {
  if (size > PTRDIFF_MAX) {
    errno = ENOMEM;
    return NULL;
  }
  uint32_t class_ = 0;
#ifdef IDEAL_STACK
  class_ = class_of(size);
  void *object = stacks[class_];
  if (object != NULL) {
    memcpy(&stacks[class_], object, sizeof(void *));
    return object;
  }
  size = size_of(class_);
#endif
  size_t usable = size < 16 ? 16 : (size + 15) & ~(size_t)15;
  char *start = take(usable + HEADER);
  if (start == NULL) return NULL;
  *(Header *)start = (Header){usable, class_, HEADER};
  return start + HEADER;
}

EXPORT void *malloc(size_t size) { return allocate(size); }

EXPORT void free(void *object) {
#ifdef IDEAL_STACK
  if (object == NULL || header_of(object)->back != HEADER) return;  // aligned ones stay
  void **stack = &stacks[header_of(object)->class_];
  memcpy(object, stack, sizeof(void *));
  *stack = object;
#else
  (void)object;
#endif
}

EXPORT void *calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return NULL;
  }
  void *object = allocate(bytes);
#ifdef IDEAL_STACK
  if (object != NULL) memset(object, 0, bytes);
#endif
  return object;
}

EXPORT void *realloc(void *object, size_t size) {
  if (object == NULL) return allocate(size);
  size_t had = header_of(object)->usable;
  if (size <= had) return object;
  void *fresh = allocate(size);
  if (fresh == NULL) return NULL;
  memcpy(fresh, object, had);
  free(object);
  return fresh;
}

EXPORT void *aligned_alloc(size_t alignment, size_t size) {
  if (alignment <= 16) return allocate(size);
  if (size > PTRDIFF_MAX - alignment - HEADER) {
    errno = ENOMEM;
    return NULL;
  }
  size_t usable = (size + 15) & ~(size_t)15;
  char *start = take(usable + alignment + HEADER);
  if (start == NULL) return NULL;
  char *object = (char *)(((uintptr_t)start + HEADER + alignment - 1) & ~(uintptr_t)(alignment - 1));
  *header_of(object) =
      (Header){usable, 0, (uint32_t)(object - start) == HEADER ? HEADER + 1 : (uint32_t)(object - start)};
  return object;
}

EXPORT void *memalign(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
EXPORT void *valloc(size_t size) { return aligned_alloc(4096, size); }
EXPORT int posix_memalign(void **result, size_t alignment, size_t size) {
  void *object = aligned_alloc(alignment, size);
  if (object == NULL) return ENOMEM;
  *result = object;
  return 0;
}
EXPORT size_t malloc_usable_size(void *object) { return object == NULL ? 0 : header_of(object)->usable; }
