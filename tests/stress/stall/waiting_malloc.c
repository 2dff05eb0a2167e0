// A malloc that waits: one lock around everything. `stall` must find it.
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

static atomic_flag lock = ATOMIC_FLAG_INIT;
static char *next, *end;

static void *bump(size_t bytes, size_t alignment) {
  while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) {
  }
  char *start = next + (-(size_t)next & (alignment - 1));
  if (start == NULL || start + bytes > end) {
    const size_t chunk = ((size_t)64 << 20) + bytes + alignment;
    next = mmap(NULL, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    end = next + chunk;
    start = next + (-(size_t)next & (alignment - 1));
  }
  next = start + bytes;
  // Long enough inside to be met there.
  for (volatile int i = 0; i < 200; ++i) {
  }
  atomic_flag_clear_explicit(&lock, memory_order_release);
  return start;
}

void *malloc(size_t size) {
  size_t *object = bump(size + 16, 16);
  *object = size;
  return object + 2;
}
void *calloc(size_t count, size_t size) { return memset(malloc(count * size), 0, count * size); }
void *realloc(void *object, size_t size) {
  void *moved = malloc(size);
  if (object != NULL) {
    const size_t old = ((size_t *)object)[-2];
    memcpy(moved, object, old < size ? old : size);
  }
  return moved;
}
void *aligned_alloc(size_t alignment, size_t size) { return bump(size, alignment); }
void *memalign(size_t alignment, size_t size) { return bump(size, alignment); }
int posix_memalign(void **out, size_t alignment, size_t size) {
  *out = bump(size, alignment);
  return 0;
}
void free(void *object) { (void)object; }
