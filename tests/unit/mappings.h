// What the kernel says about this process's mappings.
#pragma once

#include <stdint.h>
#include <stdio.h>

#include <fstream>
#include <string>

namespace folio_test {

// The VmFlags of the mapping that holds the address.
inline std::string mapping_flags(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  const auto at = reinterpret_cast<uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t from, to;
    if (sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) inside = at >= from && at < to;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line + " ";
  }
  return "";
}

}  // namespace folio_test
