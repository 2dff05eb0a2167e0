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

// A look first: a request that cannot be met must not have other threads' requests refused. (One thread that asked for
// 32 TiB over and over had 65 of 740,000 mallocs of another one refused, at a limit that they were far below.)
bool take_room_for_huge(size_t bytes) {
  if (!has_room_for_large(bytes)) return false;
  page_counts.huge_live.add(bytes);
  if (has_room_for_large(0)) return true;
  page_counts.huge_live.sub(bytes);
  return false;
}

}  // namespace folio
