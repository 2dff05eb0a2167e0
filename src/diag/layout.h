// The layout descriptor: where everything is, for a reader outside the process. Exported as `folio_layout`; found by
// its symbol, or by its magic number in the library's data. docs/layout.md describes how to read it.
#pragma once

#include <stdint.h>

namespace folio {

inline constexpr uint32_t kLayoutVersion = 8;

struct Layout {
  char magic[8];     // "FolioLay"
  uint32_t version;  // kLayoutVersion
  uint32_t bytes;    // sizeof(Layout)
  // The rows of layout.def, in their order.
#define FOLIO_LAYOUT_NUMBER(name, value) uint32_t name;
#define FOLIO_LAYOUT_ADDRESS(name, value) const void* name;
#include "diag/layout.def"
#undef FOLIO_LAYOUT_NUMBER
#undef FOLIO_LAYOUT_ADDRESS
};

// No padding: readers take the rows one behind the other.
constexpr uint32_t layout_row_bytes() {
  uint32_t bytes = 16;
#define FOLIO_LAYOUT_NUMBER(name, value) bytes += 4;
#define FOLIO_LAYOUT_ADDRESS(name, value) bytes += 8;
#include "diag/layout.def"
#undef FOLIO_LAYOUT_NUMBER
#undef FOLIO_LAYOUT_ADDRESS
  return bytes;
}
static_assert(sizeof(Layout) == layout_row_bytes());

}  // namespace folio
