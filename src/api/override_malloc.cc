// The C and POSIX allocation functions, under the names that programs call. Only in the variants that override.
//
// The whole family is here: else pointers from the libc's own members of it would reach this free, and a static link
// would fail, with half of the family defined twice.
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "core/free.h"
#include "core/malloc.h"
#include "core/realloc.h"
#include "os/os.h"

#define FOLIO_EXPORT extern "C" [[gnu::visibility("default")]]
// For the shortest functions, so that each lies in one cache line.
#define FOLIO_EXPORT_LINE extern "C" [[gnu::visibility("default"), gnu::aligned(64)]]

using namespace folio;

namespace {

void* fail(int error) {
  errno = error;
  return nullptr;
}

}  // namespace

FOLIO_EXPORT_LINE void* malloc(size_t size) noexcept { return allocate(size); }
FOLIO_EXPORT_LINE void free(void* object) noexcept { release(object, "free"); }

FOLIO_EXPORT void* calloc(size_t count, size_t size) noexcept {
  size_t bytes;
  return __builtin_mul_overflow(count, size, &bytes) ? fail(ENOMEM) : allocate_zeroed(bytes);
}

FOLIO_EXPORT void* realloc(void* object, size_t size) noexcept { return reallocate_plain(object, size, "realloc"); }

FOLIO_EXPORT void* reallocarray(void* object, size_t count, size_t size) noexcept {
  size_t bytes;
  return __builtin_mul_overflow(count, size, &bytes) ? fail(ENOMEM) : reallocate_plain(object, bytes, "reallocarray");
}

// C23.
FOLIO_EXPORT void free_sized(void* object, size_t size) noexcept { release_sized(object, size, "free_sized"); }
FOLIO_EXPORT void free_aligned_sized(void* object, size_t, size_t size) noexcept {
  release_aligned_sized(object, size, "free_aligned_sized");
}

FOLIO_EXPORT void* aligned_alloc(size_t alignment, size_t size) noexcept {
  return is_power_of_two(alignment) ? allocate_aligned(alignment, size, false) : fail(EINVAL);
}

FOLIO_EXPORT int posix_memalign(void** out, size_t alignment, size_t size) noexcept {
  if (!is_power_of_two(alignment) || alignment % sizeof(void*) != 0) return EINVAL;
  const int before = errno;
  void* object = allocate_aligned(alignment, size, false);
  errno = before;
  if (object == nullptr) return ENOMEM;
  *out = object;
  return 0;
}

// As in glibc, an alignment that is no power of two is rounded up to one.
FOLIO_EXPORT void* memalign(size_t alignment, size_t size) noexcept {
  if (alignment > SIZE_MAX / 2 + 1) return fail(EINVAL);
  return allocate_aligned(size_t{1} << log2_ceil(alignment), size, false);
}

FOLIO_EXPORT void* valloc(size_t size) noexcept { return allocate_aligned(os::page_bytes(), size, false); }

FOLIO_EXPORT void* pvalloc(size_t size) noexcept {
  if (size > PTRDIFF_MAX) return fail(ENOMEM);
  return allocate_aligned(os::page_bytes(), round_up(size == 0 ? 1 : size, os::page_bytes()), false);
}

FOLIO_EXPORT size_t malloc_usable_size(void* object) noexcept {
  Extent extent;
  return object != nullptr && find_extent(object, "malloc_usable_size", &extent) ? extent.usable_bytes : 0;
}

// Gone from glibc 2.26's headers, still linked by older programs.
FOLIO_EXPORT void cfree(void* object) noexcept { release(object, "cfree"); }

// glibc's own names of these, which it exports too, and which wrappers of malloc call to come past themselves: what
// they return is given to this free.
#if defined(__GLIBC__)
#define FOLIO_ALIAS(name) extern "C" [[gnu::visibility("default"), gnu::alias(#name)]]
FOLIO_ALIAS(malloc) void* libc_malloc(size_t) noexcept asm("__libc_malloc");
FOLIO_ALIAS(free) void libc_free(void*) noexcept asm("__libc_free");
FOLIO_ALIAS(calloc) void* libc_calloc(size_t, size_t) noexcept asm("__libc_calloc");
FOLIO_ALIAS(realloc) void* libc_realloc(void*, size_t) noexcept asm("__libc_realloc");
FOLIO_ALIAS(memalign) void* libc_memalign(size_t, size_t) noexcept asm("__libc_memalign");
FOLIO_ALIAS(valloc) void* libc_valloc(size_t) noexcept asm("__libc_valloc");
FOLIO_ALIAS(pvalloc) void* libc_pvalloc(size_t) noexcept asm("__libc_pvalloc");
#endif
