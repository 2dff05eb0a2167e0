// Sizes, and questions about values, of all tests of functions that allocate.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace folio_test {

inline constexpr size_t kKiB = size_t{1} << 10;
inline constexpr size_t kMiB = size_t{1} << 20;

// The same value, but the compiler can neither warn of it nor drop the allocation that it leads to.
template <class T>
T opaque(T value) {
  asm volatile("" : "+r"(value) : : "memory");
  return value;
}

inline bool aligned_to(const void* address, size_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

inline bool all_zero(const void* address, size_t bytes) {
  const auto* byte = static_cast<const unsigned char*>(address);
  return bytes == 0 || (byte[0] == 0 && memcmp(byte, byte + 1, bytes - 1) == 0);
}

}  // namespace folio_test
