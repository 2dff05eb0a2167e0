// C++: every replaceable operator new and delete (C++20 [new.delete]). Only in the variants that override.
//
// Built without the C++ library: what throws std::bad_alloc and knows the new-handler is found at run time, in the
// program's own C++ library, and only when memory is out.
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "core/free.h"
#include "core/malloc.h"
#include "os/os.h"
#include "os/report.h"
#include "sync/relaxed.h"

// What the compiler calls to catch an exception: the program's C++ library has it where there is something to catch.
asm(".weak __gxx_personality_v0; .weak __cxa_begin_catch; .weak __cxa_end_catch; .weak _Unwind_Resume");
asm(".weak _ZSt9terminatev; .weak __cxa_call_terminate");

// Weak: else a program that replaces one of them could not be linked statically.
#define FOLIO_EXPORT [[gnu::visibility("default"), gnu::weak]]
#define FOLIO_EXPORT_LINE [[gnu::visibility("default"), gnu::weak, gnu::aligned(64)]]  // as in override_malloc.cc

using namespace folio;

namespace std {
enum class align_val_t : size_t {};
struct nothrow_t;
}  // namespace std

namespace {

using Handler = void (*)();
using GetHandler = Handler (*)();
using Throw = void (*)();
using NewOrNull = void*(size_t, const std::nothrow_t*);
using NewAlignedOrNull = void*(size_t, std::align_val_t, const std::nothrow_t*);

}  // namespace

extern "C" {
[[gnu::weak]] void folio_throw_bad_alloc() asm("_ZSt17__throw_bad_allocv");
[[gnu::weak]] void (*folio_get_new_handler())() asm("_ZSt15get_new_handlerv");
// What a `throw std::bad_alloc()` is made of (Itanium C++ ABI): of a static C++ library only what is used is there, and
// without strings and containers __throw_bad_alloc is not.
[[gnu::weak]] void* folio_allocate_exception(size_t) asm("__cxa_allocate_exception");
[[gnu::weak]] void folio_throw(void*, void*, void (*)(void*)) asm("__cxa_throw");
[[gnu::weak]] void folio_end_bad_alloc(void*) asm("_ZNSt9bad_allocD1Ev");
[[gnu::weak]] extern char folio_bad_alloc_type[] asm("_ZTISt9bad_alloc");
[[gnu::weak]] extern void* folio_bad_alloc_table[] asm("_ZTVSt9bad_alloc");
[[gnu::weak]] void* folio_begin_catch(void*) asm("__cxa_begin_catch");
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
  const bool all = &folio_allocate_exception != nullptr && &folio_throw != nullptr && &folio_end_bad_alloc != nullptr;
  if (all && &folio_bad_alloc_type != nullptr && &folio_bad_alloc_table != nullptr) {
    void* const exception = folio_allocate_exception(sizeof(void*));
    *static_cast<void**>(exception) = &folio_bad_alloc_table[2];  // behind the offset and the type
    folio_throw(exception, folio_bad_alloc_type, folio_end_bad_alloc);
  }
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

// The nothrow forms return null where a handler throws. This file alone is compiled with exceptions, for this function
// and or_null below. Where the C++ library came with a plug-in nothing is caught here: so the library's own form calls
// operator new, of this file, and catches what it throws.
FOLIO_COLD void* allocate_with_handler_or_null(size_t alignment, size_t size) {
  if (&folio_begin_catch == nullptr) {
    const std::nothrow_t* const nothrow = nullptr;  // a reference that nobody reads
    if (alignment != 1) {
      auto* const theirs = reinterpret_cast<NewAlignedOrNull*>(find_late("_ZnwmSt11align_val_tRKSt9nothrow_t"));
      if (theirs != nullptr) return theirs(size, static_cast<std::align_val_t>(alignment), nothrow);
    } else if (auto* const theirs = reinterpret_cast<NewOrNull*>(find_late("_ZnwmRKSt9nothrow_t"))) {
      return theirs(size, nothrow);
    }
  }
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

// ---- The forms that a program may replace alone ----
//
// [new.delete]: what the others do by default is to call these. A program that has its own operator new and operator
// delete, as a pool or a tracker of leaks, must get them by all forms.

FOLIO_EXPORT_LINE void* operator new(size_t size) { return new_object(size); }
FOLIO_EXPORT void* operator new(size_t size, std::align_val_t a) { return new_aligned(size, a); }
FOLIO_EXPORT_LINE void operator delete(void* object) noexcept { release(object, "operator delete"); }
FOLIO_EXPORT void operator delete(void* object, std::align_val_t) noexcept { release(object, "operator delete"); }

// This file's own definitions, whoever's are used.
#define FOLIO_OWN(own, name) asm(".hidden " #own "; .set " #own ", " #name);
FOLIO_OWN(folio_own_new, _Znwm)
FOLIO_OWN(folio_own_new_aligned, _ZnwmSt11align_val_t)
FOLIO_OWN(folio_own_delete, _ZdlPv)
FOLIO_OWN(folio_own_delete_aligned, _ZdlPvSt11align_val_t)
FOLIO_OWN(folio_own_new_array, _Znam)
FOLIO_OWN(folio_own_new_array_aligned, _ZnamSt11align_val_t)
FOLIO_OWN(folio_own_delete_array, _ZdaPv)
FOLIO_OWN(folio_own_delete_array_aligned, _ZdaPvSt11align_val_t)
#undef FOLIO_OWN
extern "C" {
[[gnu::visibility("hidden")]] extern const char folio_own_new[], folio_own_new_aligned[], folio_own_delete[],
    folio_own_delete_aligned[], folio_own_new_array[], folio_own_new_array_aligned[], folio_own_delete_array[],
    folio_own_delete_array_aligned[];
}

namespace {

// none of the forms above is the program's, or some are
enum Whose : uint8_t { kNotKnown, kAllOwn, kReplaced };
constinit Hint<uint8_t> whose{kNotKnown};

// In a program that is not position-independent and takes the address of a form, that is the address of its entry for
// calls of it (a symbol with a value, but no section). Only the loader can tell, and it is asked as the process starts.
bool is_call_entry([[maybe_unused]] void* address) {
#if defined(FOLIO_SHARED) && defined(__GLIBC__)
  Dl_info of_address;
  const ElfW(Sym)* symbol = nullptr;
  return dladdr1(address, &of_address, const_cast<void**>(reinterpret_cast<const void**>(&symbol)), RTLD_DL_SYMENT) !=
             0 &&
         symbol != nullptr && symbol->st_shndx == SHN_UNDEF;
#else
  return false;
#endif
}

// The compiler takes two names for two addresses, without the asm.
template <class Form>
bool is_own(Form* used, const char* own, bool ask) {
  asm("" : "+r"(used));
  return reinterpret_cast<const char*>(used) == own || (ask && is_call_entry(reinterpret_cast<void*>(used)));
}
FOLIO_COLD bool all_are_own(bool ask) {
  using New = void*(size_t);
  using NewAligned = void*(size_t, std::align_val_t);
  using Delete = void(void*) noexcept;
  using DeleteAligned = void(void*, std::align_val_t) noexcept;
  return is_own<New>(&::operator new, folio_own_new, ask) &&
         is_own<Delete>(&::operator delete, folio_own_delete, ask) &&
         is_own<New>(&::operator new[], folio_own_new_array, ask) &&
         is_own<Delete>(&::operator delete[], folio_own_delete_array, ask) &&
         is_own<NewAligned>(&::operator new, folio_own_new_aligned, ask) &&
         is_own<NewAligned>(&::operator new[], folio_own_new_array_aligned, ask) &&
         is_own<DeleteAligned>(&::operator delete, folio_own_delete_aligned, ask) &&
         is_own<DeleteAligned>(&::operator delete[], folio_own_delete_array_aligned, ask);
}

#if defined(FOLIO_SHARED) && defined(__GLIBC__)
[[gnu::constructor]] void learn_whose() { whose.set(all_are_own(false) || all_are_own(true) ? kAllOwn : kReplaced); }
#endif

// Before that constructor an address alone decides, and where it is another one no more than this call.
FOLIO_COLD bool find_whether_own() {
  if (whose.get() == kReplaced || !all_are_own(false)) return false;
  whose.set(kAllOwn);
  return true;
}

// Three instructions where no form is replaced: twenty of new[] and delete[] 1.08, new and sized delete 0.99 to 1.02 of
// the time without. (Rejected: new[] as a jump to whoever's operator new it is, 1.13.)
template <class Own, class Default>
FOLIO_COLD auto find_whose(Own own, Default by_default) {
  return find_whether_own() ? own() : by_default();
}
template <class Own, class Default>
FOLIO_INLINE auto own_or_default(Own own, Default by_default) {
  if (__builtin_expect(whose.get() == kAllOwn, true)) return own();
  return find_whose(own, by_default);
}

template <class Allocate>
void* or_null(Allocate allocate) {
  try {
    return allocate();
  } catch (...) {
    return nullptr;
  }
}

}  // namespace

// ---- The others, each with what it does by default ----

FOLIO_EXPORT_LINE void* operator new[](size_t size) {
  return own_or_default([=] { return new_object(size); }, [=] { return ::operator new(size); });
}
FOLIO_EXPORT void* operator new[](size_t size, std::align_val_t a) {
  return own_or_default([=] { return new_aligned(size, a); }, [=] { return ::operator new(size, a); });
}

FOLIO_EXPORT void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return own_or_default([=] { return new_object_or_null(size); },
                        [=] { return or_null([=] { return ::operator new(size); }); });
}
FOLIO_EXPORT void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return own_or_default([=] { return new_object_or_null(size); },
                        [=] { return or_null([=] { return ::operator new[](size); }); });
}
FOLIO_EXPORT void* operator new(size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return own_or_default([=] { return new_aligned_or_null(size, a); },
                        [=] { return or_null([=] { return ::operator new(size, a); }); });
}
FOLIO_EXPORT void* operator new[](size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return own_or_default([=] { return new_aligned_or_null(size, a); },
                        [=] { return or_null([=] { return ::operator new[](size, a); }); });
}

FOLIO_EXPORT_LINE void operator delete[](void* object) noexcept {
  own_or_default([=] { release(object, "operator delete[]"); }, [=] { ::operator delete(object); });
}
FOLIO_EXPORT void operator delete[](void* object, std::align_val_t a) noexcept {
  own_or_default([=] { release(object, "operator delete[]"); }, [=] { ::operator delete(object, a); });
}
FOLIO_EXPORT void operator delete(void* object, const std::nothrow_t&) noexcept {
  own_or_default([=] { release(object, "operator delete"); }, [=] { ::operator delete(object); });
}
FOLIO_EXPORT void operator delete[](void* object, const std::nothrow_t&) noexcept {
  own_or_default([=] { release(object, "operator delete[]"); }, [=] { ::operator delete[](object); });
}
FOLIO_EXPORT_LINE void operator delete(void* object, size_t size) noexcept {
  own_or_default([=] { release_sized(object, size, "operator delete"); }, [=] { ::operator delete(object); });
}
FOLIO_EXPORT_LINE void operator delete[](void* object, size_t size) noexcept {
  own_or_default([=] { release_sized(object, size, "operator delete[]"); }, [=] { ::operator delete[](object); });
}
FOLIO_EXPORT void operator delete(void* object, std::align_val_t a, const std::nothrow_t&) noexcept {
  own_or_default([=] { release(object, "operator delete"); }, [=] { ::operator delete(object, a); });
}
FOLIO_EXPORT void operator delete[](void* object, std::align_val_t a, const std::nothrow_t&) noexcept {
  own_or_default([=] { release(object, "operator delete[]"); }, [=] { ::operator delete[](object, a); });
}
FOLIO_EXPORT void operator delete(void* object, size_t size, std::align_val_t a) noexcept {
  own_or_default([=] { release_aligned_sized(object, size, "operator delete"); },
                 [=] { ::operator delete(object, a); });
}
FOLIO_EXPORT void operator delete[](void* object, size_t size, std::align_val_t a) noexcept {
  own_or_default([=] { release_aligned_sized(object, size, "operator delete[]"); },
                 [=] { ::operator delete[](object, a); });
}
