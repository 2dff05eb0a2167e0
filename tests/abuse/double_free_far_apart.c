// Many magazines of other frees lie between both: found at the latest when all caches are emptied.
// expect-line: *({p}): double free of a {size}-byte object (bin {bin}) #double-free
#include "abuse.h"

enum { kOthers = 2000 };

int main(void) {
  static char *others[kOthers];
  for (int i = 0; i < kOthers; i++) others[i] = (char *)malloc(64);
  char *object = reported_object(64);
  free(object);
  for (int i = 0; i < kOthers / 2; i++) free(others[i]);
  free(opaque(object));
  for (int i = kOthers / 2; i < kOthers; i++) free(others[i]);
  folio_collect();
  heap_still_works();
  return 0;
}
