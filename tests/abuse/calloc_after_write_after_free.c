// Freed pages that are purged and then written to must not come back from calloc as if the kernel had zeroed them,
// once they have been handed out again.
// expect-status: 0
#include "abuse.h"

int main(void) {
  static const size_t sizes[] = {64, 4096, 100000, 3u << 20};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    for (int round = 0; round < 50; round++) {
      unsigned char *object = (unsigned char *)malloc(sizes[s]);
      require(object != NULL, "malloc");
      memset(object, 0xee, sizes[s]);
      free(object);
      if (round % 3 == 0) folio_collect();
      unsigned char *zeroed = (unsigned char *)calloc(1, sizes[s]);
      require(zeroed != NULL, "calloc");
      for (size_t i = 0; i < sizes[s]; i++) require(zeroed[i] == 0, "calloc gives zeroes");
      memset(zeroed, 0xdd, sizes[s]);
      free(zeroed);
    }
  }
  heap_still_works();
  return 0;
}
