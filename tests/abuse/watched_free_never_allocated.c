// The neighbour, which a cache holds for a malloc to come: found at once while a process's frees are watched.
// watch: yes
// abort-before: went_on
// expect-line: free({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

int main(void) {
  char *keep = (char *)opaque(malloc(48));
  char *neighbour = keep + folio_usable_size(keep);
  tell_object(neighbour);
  free(opaque(neighbour));
  tell("went_on", keep);
  heap_still_works();
  free(keep);
  return 0;
}
