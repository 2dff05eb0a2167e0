// What a test writes into a huge block, to find it again.
#pragma once

#include <stddef.h>

#include "space/huge.h"

namespace folio_test {

inline void fill(folio::HugeBlock* block, unsigned seed) {
  for (size_t i = 0; i < block->usable_bytes; i += 512) block->base[i] = static_cast<char>(i / 512 + seed);
}

inline bool filled(const folio::HugeBlock* block, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i += 512) {
    if (block->base[i] != static_cast<char>(i / 512 + seed)) return false;
  }
  return true;
}

}  // namespace folio_test
