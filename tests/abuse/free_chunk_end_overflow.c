// The end of a chunk, at a multiple of the object's size where none has room.
// watch: no
// abort-before: overflowed
// expect-line: *({end}): not the start of an object: in an unused part of a chunk (bin {bin}) #invalid-free
#include "abuse.h"

enum { kOthers = 1024 };

int main(void) {
  static char *others[kOthers];
  for (int i = 0; i < kOthers; i++) others[i] = (char *)opaque(malloc(64));
  char *object = told_object(64);
  uintptr_t chunk_bytes = 2u << 20;
  char *end = (char *)(((uintptr_t)object / chunk_bytes + 1) * chunk_bytes);
  // The last place for one of these; a chunk's objects end before it by what colours leave.
  folio_place place;
  char *behind = end - 64;
  tell("end", folio_locate(behind, &place) ? end - 8 : behind);
  free(opaque(folio_locate(behind, &place) ? end - 8 : behind));
  for (int i = 0; i < kOthers; i++) free(others[i]);
  tell("overflowed", object);
  heap_still_works();
  free(object);
  return 0;
}
