// Carves chunks out of regions, reserves the next region, and takes chunks back.
#include "space/region.h"

#include "arch/arch.h"
#include "config/size_classes.h"
#include "os/os.h"

namespace folio {

constinit Atomic<uint64_t> region_cursor{0};
constinit Counter<size_t> region_reserved{0};

namespace {

constexpr size_t kFirstRegionBytes = size_t{64} << 20;
constexpr size_t kRegionBytesMost = size_t{1} << 30;

uint64_t pack(uint64_t next, uint64_t end) { return (next << 32) | end; }

char* chunk_of(uint64_t number) { return reinterpret_cast<char*>(number << kChunkShift); }

}  // namespace

char* carve_chunk() {
  // Relaxed: the word holds numbers only, and what they number is zero-filled address space. [region] acquire, where a
  // chunk is carved: it may be one that has come back, which others have used; pairs with uncarve_chunk.
  uint64_t now = region_cursor.load(order::relaxed);
  for (;;) {
    const uint64_t next = now >> 32, end = now & 0xffffffffu;
    if (next != end) {
      const uint64_t carved_on = pack(next + 1, end);
      // [region] acquire: see above
      if (region_cursor.compare_exchange(now, carved_on, order::acquire)) return chunk_of(next);
      continue;
    }
    size_t bytes = region_reserved.get();
    bytes = bytes < kFirstRegionBytes ? kFirstRegionBytes : bytes > kRegionBytesMost ? kRegionBytesMost : bytes;
    void* start = nullptr;
    while ((start = os::reserve(bytes, kChunkBytes)) == nullptr) {
      if (bytes == kChunkBytes) return nullptr;
      bytes = round_up(bytes / 8, kChunkBytes);  // little at a time: the program's own mappings need some too
    }
    const uint64_t first = reinterpret_cast<uintptr_t>(start) >> kChunkShift;
    // Installed less the chunk that this call is for. The loser of a race gives its region back and tries again.
    // relaxed: see above
    if (region_cursor.compare_exchange(now, pack(first + 1, first + (bytes >> kChunkShift)), order::relaxed)) {
      region_reserved.add(bytes);
      return chunk_of(first);
    }
    os::unreserve(start, bytes);
  }
}

void uncarve_chunk(char* chunk) {
  // If it was the last one that was carved, the cursor goes back; else it leaves a hole.
  const uint64_t number = reinterpret_cast<uintptr_t>(chunk) >> kChunkShift;
  uint64_t now = region_cursor.load(order::relaxed);  // relaxed: numbers only, as in carve_chunk
  while (now >> 32 == number + 1) {
    // [region] release: after whoever used the chunk; pairs with carve_chunk.
    if (region_cursor.compare_exchange(now, pack(number, now & 0xffffffffu), order::release)) return;
  }
  if (os::unreserve(chunk, kChunkBytes)) region_reserved.sub(kChunkBytes);
}

size_t region_bytes() { return region_reserved.get(); }

}  // namespace folio
