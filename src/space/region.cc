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

constinit Counter<size_t> carved{0};

uint64_t pack(uint64_t next, uint64_t end) { return (next << 32) | end; }

char* carve(uint64_t number) {
  carved.add(1);
  return reinterpret_cast<char*>(number << kChunkShift);
}

// Where there is no address space: a chunk from a field of large objects. (Of 1 GiB that was full of large objects, all
// freed, small objects get 984 MiB in place of 56.)
char* borrow_chunk() {
  char* const chunk = lend_chunk();
  if (chunk != nullptr) carved.add(1);
  return chunk;
}

}  // namespace

char* acquire_chunk() {
  // Relaxed: the word holds numbers only, and what they number is zero-filled address space. [region] acquire, where a
  // chunk is carved: it may be one that has come back, which others have used; pairs with return_chunk.
  uint64_t now = region_cursor.load(order::relaxed);
  for (;;) {
    const uint64_t next = now >> 32, end = now & 0xffffffffu;
    if (next != end) {
      const uint64_t carved_on = pack(next + 1, end);
      // [region] acquire: see above
      if (region_cursor.compare_exchange(now, carved_on, order::acquire)) return carve(next);
      continue;
    }
    size_t bytes = region_reserved.get();
    bytes = bytes < kFirstRegionBytes ? kFirstRegionBytes : bytes > kRegionBytesMost ? kRegionBytesMost : bytes;
    void* start = nullptr;
    while ((start = os::reserve(bytes, kChunkBytes)) == nullptr) {
      if (bytes == kChunkBytes) return borrow_chunk();
      bytes = round_up(bytes / 8, kChunkBytes);  // little at a time: the program's own mappings need some too
    }
    const uint64_t first = reinterpret_cast<uintptr_t>(start) >> kChunkShift;
    // Installed less the chunk that this call is for. The loser of a race gives its region back and tries again.
    // relaxed: see above
    if (region_cursor.compare_exchange(now, pack(first + 1, first + (bytes >> kChunkShift)), order::relaxed)) {
      region_reserved.add(bytes);
      return carve(first);
    }
    os::unreserve(start, bytes);
  }
}

void return_chunk(char* chunk) {
  carved.sub(1);
  if (take_back_chunk(chunk)) return;
  // If it was the last one that was carved, the cursor goes back; else it leaves a hole.
  const uint64_t number = reinterpret_cast<uintptr_t>(chunk) >> kChunkShift;
  uint64_t now = region_cursor.load(order::relaxed);  // relaxed: numbers only, as in acquire_chunk
  while (now >> 32 == number + 1) {
    // [region] release: after whoever used the chunk; pairs with acquire_chunk.
    if (region_cursor.compare_exchange(now, pack(number, now & 0xffffffffu), order::release)) return;
  }
  if (os::unreserve(chunk, kChunkBytes)) region_reserved.sub(kChunkBytes);
}

size_t region_bytes() { return region_reserved.get(); }
size_t region_chunks() { return carved.get(); }

}  // namespace folio
