// The start of an object that was never handed out.
// expect-line: *({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

enum { kUnused = 100 };

int main(void) {
  char *keep = (char *)malloc(4000);
  folio_collect();
  folio_place place;
  char *unused = keep;
  for (int i = 0; i < kUnused; i++) {
    require(folio_locate(unused, &place), "folio_locate");
    if (!place.taken) break;
    unused = (char *)place.base + place.usable_size;
  }
  require(!place.taken && place.base == unused, "a free object behind the first");
  tell_object(unused);
  free(opaque(unused));
  folio_collect();
  heap_still_works();
  free(keep);
  return 0;
}
