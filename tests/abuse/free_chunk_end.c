// The end of a chunk, where no object has room.
// expect-line: *({end}): not the start of an object: in an unused part of a chunk (bin {bin}) #invalid-free
#include "abuse.h"

int main(void) {
  char *object = reported_object(96);
  folio_place place;
  require(folio_locate(object, &place), "folio_locate");
  uintptr_t chunk_bytes = 256u << 10;
  char *end = (char *)(((uintptr_t)object / chunk_bytes + 1) * chunk_bytes - 16);
  require(chunk_bytes % place.usable_size > 16, "a bin that leaves some of its chunk unused");
  tell("end", end);
  free(opaque(end));
  folio_collect();
  heap_still_works();
  free(object);
  return 0;
}
