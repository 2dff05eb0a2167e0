// errors:ignore: thousands of misuses, no line, and no object handed out twice.
// options: errors:ignore
// expect-status: 0
#include "abuse.h"

enum { kObjects = 3000 };

int main(void) {
  static char *objects[kObjects];
  for (int i = 0; i < kObjects; i++) objects[i] = (char *)malloc(80);
  for (int i = 0; i < kObjects; i++) {
    free(objects[i]);
    free(opaque(objects[i]));
    free(opaque(objects));
  }
  for (int i = 0; i < kObjects; i++) {
    free(opaque(objects[i] + 8));
    if (i % 32 == 0) folio_collect();
  }
  folio_collect();
  heap_still_works();
  return 0;
}
