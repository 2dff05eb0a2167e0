// Carves clusters out of regions, reserves the next region, and unmaps clusters.
#include "space/region.h"

#include "arch/arch.h"
#include "config/size_classes.h"
#include "os/os.h"
#include "space/chunk_table.h"

namespace folio {

constinit Atomic<uint64_t> region_cursor{0};
constinit Counter<size_t> region_reserved{0};

namespace {

constexpr size_t kFirstRegionBytes = size_t{64} << 20;
constexpr size_t kRegionBytesMost = size_t{1} << 30;

uint64_t pack(uint64_t next, uint64_t end) { return (next << 32) | end; }

char* cluster_at(uint64_t number) { return reinterpret_cast<char*>(number << kClusterShift); }

}  // namespace

size_t modest(size_t bytes) {
  constexpr size_t kShare = 32;
  static constinit Hint<size_t> most{0};
  if (most.get() == 0) most.set(round_up(os::address_space_limit() / kShare + 1, kClusterBytes));
  return bytes < most.get() ? bytes : most.get();
}

char* carve_cluster() {
  // Relaxed, all: the word holds numbers only, and what they number is zero-filled address space.
  uint64_t now = region_cursor.load(order::relaxed);
  for (;;) {
    const uint64_t next = now >> 32, end = now & 0xffffffffu;
    if (next != end) {
      const uint64_t carved_on = pack(next + 1, end);
      if (region_cursor.compare_exchange(now, carved_on, order::relaxed)) return cluster_at(next);  // relaxed: above
      continue;
    }
    size_t bytes = region_reserved.get();
    bytes = bytes < kFirstRegionBytes ? kFirstRegionBytes : bytes > kRegionBytesMost ? kRegionBytesMost : bytes;
    bytes = modest(bytes);
    void* start = nullptr;
    while ((start = reserve_apart(bytes, kClusterBytes, bytes)) == nullptr) {
      if (bytes == kClusterBytes) return nullptr;
      bytes = round_up(bytes / 8, kClusterBytes);  // little at a time: the program's own mappings need some too
    }
    const uint64_t first = reinterpret_cast<uintptr_t>(start) >> kClusterShift;
    // Installed less the cluster that this call is for. The loser of a race gives its region back and tries again.
    // Relaxed: as above.
    if (region_cursor.compare_exchange(now, pack(first + 1, first + (bytes >> kClusterShift)), order::relaxed)) {
      region_reserved.add(bytes);
      return cluster_at(first);
    }
    os::unreserve(start, bytes);
  }
}

bool uncarve_cluster(char* start) {
  if (!os::unreserve(start, kClusterBytes)) return false;
  region_reserved.sub(kClusterBytes);
  return true;
}

// What was offered in vain is kept meanwhile, unless it is large, with fillers of 1 GiB and more, so that the next
// offer is another one.
void* reserve_apart(size_t bytes, size_t alignment, size_t entered, os::HugePages pages) {
  constexpr unsigned kMost = 15;  // fillers of 16 TiB in all
  constexpr size_t kFillerLeast = size_t{1} << 30;
  void *start = os::reserve(bytes, alignment, pages), *vain[kMost + 1], *filler[kMost];
  unsigned n = 0;
  while (start != nullptr && !windows_have_room(start, entered)) {
    const bool stays = bytes < kFillerLeast && n < kMost;
    if (!stays) os::unreserve(start, bytes);
    vain[n] = stays ? start : nullptr;
    start = nullptr;
    if (n == kMost) break;
    filler[n] = os::reserve(kFillerLeast << n, kClusterBytes);
    start = os::reserve(bytes, alignment, pages);
    ++n;
  }
  while (n-- != 0) {
    if (vain[n] != nullptr) os::unreserve(vain[n], bytes);
    if (filler[n] != nullptr) os::unreserve(filler[n], kFillerLeast << n);
  }
  return start;
}

size_t region_bytes() { return region_reserved.get(); }

}  // namespace folio
