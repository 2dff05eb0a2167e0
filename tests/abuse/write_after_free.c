// Freed objects are written over from end to end, before and after they went back: no list lies in them.
// expect-status: 0
#include "abuse.h"

enum { kObjects = 300 };

int main(void) {
  static char *objects[kObjects];
  static const size_t sizes[] = {8, 16, 48, 64, 1000, 4096, 20000, 100000};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    for (int i = 0; i < kObjects; i++) objects[i] = (char *)malloc(sizes[s]);
    for (int i = 0; i < kObjects; i++) free(objects[i]);
    for (int i = 0; i < kObjects; i++) memset(opaque(objects[i]), 0xff, sizes[s]);
    for (int i = 0; i < kObjects; i++) objects[i] = (char *)malloc(sizes[s]);
    for (int i = 0; i < kObjects; i++) free(objects[i]);
    folio_collect();
    for (int i = 0; i < kObjects; i++) memset(opaque(objects[i]), 0x41, sizes[s]);
  }
  heap_still_works();
  return 0;
}
