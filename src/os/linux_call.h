// A raw system call, for the files of this system.
#pragma once

#include "arch/arch.h"

namespace folio::os {

template <class... A>
inline long call(long n, A... a) {
  return arch::syscall6(n, (long)a...);
}

inline bool failed(long result) { return result < 0 && result > -4096; }

}  // namespace folio::os
