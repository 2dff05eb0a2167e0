#include "space/chunk_table.h"

#include "space/metadata.h"

namespace folio {

alignas(64) constinit uint16_t chunk_table[kChunkTableEntries] = {};

constinit Atomic<Window*> windows[kChunkTableEntries >> kWindowShift];

Window* window_make(const void* address) {
  if (Window* window = window_of(address)) return window;
  auto* fresh = static_cast<Window*>(metadata_alloc(sizeof(Window)));
  if (fresh == nullptr) return nullptr;
  fresh->number = reinterpret_cast<uintptr_t>(address) >> (kChunkShift + kWindowShift);
  Window* found = nullptr;
  // [window] release: publishes the number; pairs with window_of. The loser of a race loses 32 KiB of untouched
  // metadata.
  return window_entry(address).compare_exchange(found, fresh, order::release) ? fresh : window_of(address);
}

}  // namespace folio
