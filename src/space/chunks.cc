// Asks the regions first, then the fields; a chunk that comes back goes where it came from.
#include "space/chunks.h"

#include "space/large.h"
#include "space/region.h"
#include "sync/relaxed.h"

namespace folio {

namespace {

constinit Counter<size_t> in_use{0};

// Places that were vacated: unmapped ones would be holes, which no region fills, while descriptors stay for each bin
// and place. (10,500 phases of 21 sizes, each with a few survivors: 13 MiB of metadata in place of 68; one run each.)
constexpr unsigned kVacantMost = 64;
constinit Atomic<char*> vacant[kVacantMost]{};

char* take_vacant() {
  for (Atomic<char*>& place : vacant) {
    if (place.load(order::relaxed) == nullptr) continue;  // relaxed: a glance
    // [region] acquire: others have used it; pairs with vacate_chunk.
    if (char* const chunk = place.exchange(nullptr, order::acquire)) return chunk;
  }
  return nullptr;
}

}  // namespace

char* acquire_chunk(bool* vacated) {
  char* chunk = take_vacant();
  if (vacated != nullptr) *vacated = chunk != nullptr;
  if (chunk != nullptr) return chunk;
  chunk = carve_chunk();
  if (chunk == nullptr) chunk = lend_chunk();
  if (chunk != nullptr) in_use.add(1);
  return chunk;
}

char* acquire_resident_chunk(uint64_t resident[2]) {
  char* const chunk = lend_resident_chunk(resident);
  if (chunk != nullptr) in_use.add(1);
  return chunk;
}

void return_chunk(char* chunk) {
  in_use.sub(1);
  if (!take_back_chunk(chunk)) uncarve_chunk(chunk);
}

void vacate_chunk(char* chunk) {
  if (take_back_chunk(chunk)) {
    in_use.sub(1);
    return;
  }
  for (Atomic<char*>& place : vacant) {
    char* now = place.load(order::relaxed);  // relaxed: a glance
    // [region] release: after whoever used the chunk; pairs with take_vacant.
    if (now == nullptr && place.compare_exchange(now, chunk, order::release)) return;
  }
  return_chunk(chunk);
}

size_t return_vacant_chunks() {
  size_t returned = 0;
  for (; char* const chunk = take_vacant(); ++returned) return_chunk(chunk);
  return returned;
}

size_t chunks_in_use() { return in_use.get(); }

}  // namespace folio
