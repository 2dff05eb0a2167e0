// The memory cgroup that the process is in: the smallest limit on the path from its own one to the root, of version 2
// and version 1. By files, and so at the start of the process only. In a namespace the path ends at the namespace's
// root: what is above it is not shown.
#pragma once

#include <stdint.h>

#include "os/os.h"

namespace folio {

struct MemoryCgroup {
  bool known;                  // the kernel says which cgroups the process is in, and where they are mounted
  int64_t limit;               // bytes; 0: none
  char folder[os::kPathMost];  // of its own cgroup of version 2, "" if there is none
};

void find_memory_cgroup(MemoryCgroup* found);

// A decimal number at the start of a text, or -1: also for what is larger than any memory.
int64_t number_in(const char* text, size_t length);

}  // namespace folio
