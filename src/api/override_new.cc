// C++: every replaceable operator new and delete (C++20 [new.delete]). Only in the variants that override.
//
// Built without the C++ library: what throws std::bad_alloc and knows the new-handler is found at run time, in the
// program's own C++ library, and only when memory is out.
#include <dlfcn.h>
#include <stddef.h>

#include "base/text.h"
#include "core/free.h"
#include "core/malloc.h"
#include "os/os.h"
#include "os/report.h"

// What the compiler calls to catch an exception: the program's C++ library has it where there is something to catch.
asm(".weak __gxx_personality_v0; .weak __cxa_begin_catch; .weak __cxa_end_catch; .weak _Unwind_Resume");
asm(".weak _ZSt9terminatev; .weak __cxa_call_terminate");

#define FOLIO_EXPORT [[gnu::visibility("default")]]
#define FOLIO_EXPORT_LINE [[gnu::visibility("default"), gnu::aligned(64)]]  // as in override_malloc.cc

using namespace folio;

namespace std {
enum class align_val_t : size_t {};
struct nothrow_t;
}  // namespace std

namespace {

using Handler = void (*)();
using GetHandler = Handler (*)();
using Throw = void (*)();

}  // namespace

extern "C" {
[[gnu::weak]] void folio_throw_bad_alloc() asm("_ZSt17__throw_bad_allocv");
[[gnu::weak]] void (*folio_get_new_handler())() asm("_ZSt15get_new_handlerv");
#if defined(FOLIO_SHARED)
// By other names: <dlfcn.h> declares them strong.
[[gnu::weak]] void* folio_dlopen(const char*, int) asm("dlopen");
[[gnu::weak]] void* folio_dlsym(void*, const char*) asm("dlsym");
#endif
}

namespace {

// A C++ library that a plug-in brought in is not in the scope in which the weak names were looked up.
void* find_late(const char* name) {
#if defined(FOLIO_SHARED)
  if (&folio_dlopen == nullptr || &folio_dlsym == nullptr) return nullptr;
  void* library = folio_dlopen("libstdc++.so.6", RTLD_NOLOAD | RTLD_LAZY);
  return library == nullptr ? nullptr : folio_dlsym(library, name);
#else
  static_cast<void>(name);
  return nullptr;
#endif
}

GetHandler find_get_handler() {
  if (&folio_get_new_handler != nullptr) return folio_get_new_handler;
  return reinterpret_cast<GetHandler>(find_late("_ZSt15get_new_handlerv"));
}

[[noreturn]] void throw_bad_alloc(size_t size) {
  Throw thrower = &folio_throw_bad_alloc;
  if (thrower == nullptr) thrower = reinterpret_cast<Throw>(find_late("_ZSt17__throw_bad_allocv"));
  if (thrower != nullptr) thrower();
  Text line;
  line << "folio: operator new(" << static_cast<uint64_t>(size)
       << "): out of memory, and no C++ library in reach to throw std::bad_alloc (see docs/errors.md#no-bad-alloc)";
  write_line(line);
  os::abort_process();
}

// [new.delete.single]: call the handler as long as there is one, and try again; without one, fail.
FOLIO_COLD void* allocate_with_handler(size_t alignment, size_t size, bool throws) {
  for (;;) {
    const GetHandler get = find_get_handler();
    const Handler handler = get == nullptr ? nullptr : get();
    if (handler == nullptr) {
      if (!throws) return nullptr;
      throw_bad_alloc(size);
    }
    handler();
    if (void* object = allocate_aligned(alignment, size, false)) return object;
  }
}

// The nothrow forms return null where a handler throws. This file alone is compiled with exceptions, for this function.
FOLIO_COLD void* allocate_with_handler_or_null(size_t alignment, size_t size) {
  try {
    return allocate_with_handler(alignment, size, false);
  } catch (...) {
    return nullptr;
  }
}

// What the fast path does not do; a tail call, so that the fast path saves no register: 12 instructions in place of 15.
FOLIO_NOINLINE void* new_object_slow(size_t size) {
  void* object = allocate(size);
  return __builtin_expect(object != nullptr, true) ? object : allocate_with_handler(1, size, true);
}
FOLIO_NOINLINE void* new_object_or_null_slow(size_t size) {
  void* object = allocate(size);
  return __builtin_expect(object != nullptr, true) ? object : allocate_with_handler_or_null(1, size);
}
FOLIO_INLINE void* new_object(size_t size) {
  void* object = allocate_fast(size);
  return __builtin_expect(object != nullptr, true) ? object : new_object_slow(size);
}
FOLIO_INLINE void* new_object_or_null(size_t size) {
  void* object = allocate_fast(size);
  return __builtin_expect(object != nullptr, true) ? object : new_object_or_null_slow(size);
}
FOLIO_INLINE void* new_aligned(size_t size, std::align_val_t alignment) {
  void* object = allocate_aligned(static_cast<size_t>(alignment), size, false);
  return object != nullptr ? object : allocate_with_handler(static_cast<size_t>(alignment), size, true);
}
FOLIO_INLINE void* new_aligned_or_null(size_t size, std::align_val_t alignment) {
  void* object = allocate_aligned(static_cast<size_t>(alignment), size, false);
  return object != nullptr ? object : allocate_with_handler_or_null(static_cast<size_t>(alignment), size);
}

}  // namespace

FOLIO_EXPORT_LINE void* operator new(size_t size) { return new_object(size); }
FOLIO_EXPORT_LINE void* operator new[](size_t size) { return new_object(size); }
FOLIO_EXPORT void* operator new(size_t size, const std::nothrow_t&) noexcept { return new_object_or_null(size); }
FOLIO_EXPORT void* operator new[](size_t size, const std::nothrow_t&) noexcept { return new_object_or_null(size); }
FOLIO_EXPORT void* operator new(size_t size, std::align_val_t a) { return new_aligned(size, a); }
FOLIO_EXPORT void* operator new[](size_t size, std::align_val_t a) { return new_aligned(size, a); }
FOLIO_EXPORT void* operator new(size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return new_aligned_or_null(size, a);
}
FOLIO_EXPORT void* operator new[](size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return new_aligned_or_null(size, a);
}

FOLIO_EXPORT_LINE void operator delete(void* object) noexcept { release(object, "operator delete"); }
FOLIO_EXPORT_LINE void operator delete[](void* object) noexcept { release(object, "operator delete[]"); }
FOLIO_EXPORT void operator delete(void* object, const std::nothrow_t&) noexcept { release(object, "operator delete"); }
FOLIO_EXPORT void operator delete[](void* object, const std::nothrow_t&) noexcept {
  release(object, "operator delete[]");
}
FOLIO_EXPORT_LINE void operator delete(void* object, size_t size) noexcept {
  release_sized(object, size, "operator delete");
}
FOLIO_EXPORT_LINE void operator delete[](void* object, size_t size) noexcept {
  release_sized(object, size, "operator delete[]");
}
FOLIO_EXPORT void operator delete(void* object, std::align_val_t) noexcept { release(object, "operator delete"); }
FOLIO_EXPORT void operator delete[](void* object, std::align_val_t) noexcept { release(object, "operator delete[]"); }
FOLIO_EXPORT void operator delete(void* object, std::align_val_t, const std::nothrow_t&) noexcept {
  release(object, "operator delete");
}
FOLIO_EXPORT void operator delete[](void* object, std::align_val_t, const std::nothrow_t&) noexcept {
  release(object, "operator delete[]");
}
FOLIO_EXPORT void operator delete(void* object, size_t size, std::align_val_t) noexcept {
  release_aligned_sized(object, size, "operator delete");
}
FOLIO_EXPORT void operator delete[](void* object, size_t size, std::align_val_t) noexcept {
  release_aligned_sized(object, size, "operator delete[]");
}
