// pthread_create and thrd_create: where the program starts a thread, the housekeeper may start too. Only in the shared
// library that overrides; a static link has no next definition to call.
//
// Why here: the program is calling pthread_create itself, under whatever locks it holds, so one more call takes no lock
// that this one does not take. In a malloc it could: a program that wraps pthread_create, and allocates under a lock of
// its own, would deadlock. For the same reason the housekeeper is made by the libc's own function, past all wrappers.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <threads.h>

#include "base/atomic.h"
#include "core/clock.h"
#include "core/lifecycle.h"
#include "os/os.h"

#define FOLIO_EXPORT extern "C" [[gnu::visibility("default")]]

using namespace folio;

namespace {

using CreateThread = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
using CreateC11 = int(thrd_t*, thrd_start_t, void*);

constinit Atomic<CreateThread*> next_create{nullptr};
constinit Atomic<CreateC11*> next_create_c11{nullptr};

// The definition after this library's in the order of the search, which may be a wrapper too.
template <class Function>
Function* next(Atomic<Function*>& known, const char* name) {
  Function* found = known.load(order::relaxed);  // relaxed: every thread finds the same, code that was there before
  if (found == nullptr) {
    found = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
    known.store(found, order::relaxed);  // relaxed: as above
  }
  return found;
}

// By _dl_find_object where there is one (glibc 2.35): two dladdr, which look through symbols, doubled the instructions
// of /bin/true.
bool in_one_library(void* a, void* b) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 35)
  dl_find_object of_a, of_b;
  return _dl_find_object(a, &of_a) == 0 && _dl_find_object(b, &of_b) == 0 && of_a.dlfo_link_map == of_b.dlfo_link_map;
#else
  Dl_info of_a, of_b;
  return dladdr(a, &of_a) != 0 && dladdr(b, &of_b) != 0 && of_a.dli_fbase == of_b.dli_fbase;
#endif
}

// The libc's own pthread_create. Mostly it is the next definition, and to check that costs less than to open the libc.
CreateThread* libc_create() {
  CreateThread* const after = next(next_create, "pthread_create");
  if (in_one_library(reinterpret_cast<void*>(after), reinterpret_cast<void*>(getauxval))) return after;
  constexpr const char* kLibraries[] = {"libc.so.6", "libpthread.so.0"};
  for (const char* const name : kLibraries) {
    void* const library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
    void* const found = library == nullptr ? nullptr : dlsym(library, "pthread_create");
    if (found != nullptr) return reinterpret_cast<CreateThread*>(found);
  }
  return after;
}

// Before any constructor of the rest, which may start the housekeeper.
[[gnu::constructor(101)]] void find_functions() {
  next(next_create_c11, "thrd_create");
  os::create_threads_by(reinterpret_cast<os::AnyFunction*>(libc_create()));
}

void start_housekeeper() {
  const int before = errno;
  start();
  clock_start_housekeeper();
  errno = before;
}

}  // namespace

FOLIO_EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*main)(void*),
                                void* argument) noexcept {
  CreateThread* const create = next(next_create, "pthread_create");
  if (create == nullptr) return ENOSYS;
  os::note_stacks(attributes);
  const int error = create(thread, attributes, main, argument);
  if (error == 0) start_housekeeper();
  return error;
}

FOLIO_EXPORT int thrd_create(thrd_t* thread, thrd_start_t main, void* argument) {
  CreateC11* const create = next(next_create_c11, "thrd_create");
  if (create == nullptr) return thrd_error;
  const int error = create(thread, main, argument);
  if (error == thrd_success) start_housekeeper();
  return error;
}
