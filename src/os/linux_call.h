// A raw system call, for the files of this system.
#pragma once

#include "arch/arch.h"

namespace folio::os {

template <class... A>
inline long call(long n, A... a) {
  return arch::syscall6(n, (long)a...);
}

inline bool failed(long result) { return result < 0 && result > -4096; }

// An address that one thread unmaps and another one maps: what the first wrote there comes before what the second
// writes. ThreadSanitizer, which does not see these system calls, is told so. (Two threads that make the first metadata
// at once, of which one gives its own back, were a race to it in one of eight runs.)
#if defined(__SANITIZE_THREAD__)
extern "C" {
[[gnu::weak]] void __tsan_acquire(void* address);  // none in the explorer, which has the compiler's part only
[[gnu::weak]] void __tsan_release(void* address);
}
inline char mappings;
inline void* mapped(void* address) {
  if (__tsan_acquire != nullptr) __tsan_acquire(&mappings);
  return address;
}
inline void* unmapping(void* address) {
  if (__tsan_release != nullptr) __tsan_release(&mappings);
  return address;
}
#else
inline void* mapped(void* address) { return address; }
inline void* unmapping(void* address) { return address; }
#endif

}  // namespace folio::os
