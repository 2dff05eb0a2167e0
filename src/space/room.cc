// What is held, and the comparison with the limit behind the inlined fast answer.
#include "space/room.h"

#include "space/metadata.h"
#include "space/pages.h"

namespace folio {

constinit MemoryRoom memory_room;

int64_t held_bytes() {
  const int64_t resident = page_counts.resident.get();
  return (resident > 0 ? resident : 0) + static_cast<int64_t>(page_counts.huge_live.get() + metadata_bytes());
}

bool has_room_slow(size_t bytes, int64_t most) {
  return bytes <= static_cast<size_t>(most) && held_bytes() <= most - static_cast<int64_t>(bytes);
}

}  // namespace folio
