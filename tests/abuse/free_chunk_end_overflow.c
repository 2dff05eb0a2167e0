// The end of a chunk, at a multiple of the object's size where none has room.
// watch: no
// abort-before: overflowed
// expect-line: *({end}): not the start of an object: in an unused part of a chunk (bin {bin}) #invalid-free
#include "abuse.h"

enum { kLeast = 1024, kMost = 70000 };

static char *last_place(char *object) {
  const uintptr_t chunk_bytes = 256u << 10;
  return (char *)(((uintptr_t)object / chunk_bytes + 1) * chunk_bytes) - 64;
}

int main(void) {
  static char *others[kMost];
  // Of a chunk whose colour is the greatest the last place is an object's; the next chunk has another one.
  folio_place place;
  int n = 0;
  do others[n] = (char *)opaque(malloc(64));
  while (++n < kLeast || (n < kMost && folio_locate(last_place(others[n - 1]), &place)));
  char *object = reported_object(64);
  char *behind = last_place(object);
  tell("end", behind);
  free(opaque(behind));
  for (int i = 0; i < n; i++) free(others[i]);
  tell("overflowed", object);
  heap_still_works();
  free(object);
  return 0;
}
