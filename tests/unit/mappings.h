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

// Where the writable mapping that holds the address ends; null if there is none.
inline const char* mapping_end(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from, to;
    char read, write;
    if (sscanf(line.c_str(), "%lx-%lx %c%c", &from, &to, &read, &write) != 4 || at < from || at >= to) continue;
    return write == 'w' ? reinterpret_cast<const char*>(to) : nullptr;
  }
  return nullptr;
}

}  // namespace folio_test
