// Asks the regions first, then the fields; a chunk that comes back goes where it came from.
#include "space/chunks.h"

#include "space/large.h"
#include "space/region.h"
#include "sync/relaxed.h"

namespace folio {

namespace {

constinit Counter<size_t> in_use{0};

}  // namespace

char* acquire_chunk() {
  char* chunk = carve_chunk();
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

size_t chunks_in_use() { return in_use.get(); }

}  // namespace folio
