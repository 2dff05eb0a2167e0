// 64 bytes written past an object: no metadata lies there, so the allocator does not notice and does not break.
// expect-status: 0
#include "abuse.h"

enum { kObjects = 200 };

int main(void) {
  static char *objects[kObjects];
  static const size_t sizes[] = {8, 16, 48, 64, 1000, 4096, 20000, 100000};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    for (int i = 0; i < kObjects; i++) objects[i] = (char *)malloc(sizes[s]);
    // Every second one: what it overwrites belongs to the program or to nobody, never to Folio. The last object of
    // all may end where the mapping ends, so the program owns one more behind it.
    for (int i = 0; i + 1 < kObjects; i += 2) {
      folio_place next;
      char *end = objects[i] + folio_usable_size(objects[i]);
      if (folio_locate(end, &next)) memset(opaque(end), 0xa5, next.usable_size < 64 ? next.usable_size : 64);
    }
    for (int i = 0; i < kObjects; i++) free(objects[i]);
    folio_collect();
  }
  heap_still_works();
  return 0;
}
