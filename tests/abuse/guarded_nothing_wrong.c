// Programs that do nothing wrong are left alone: objects of every size are written from end to end, resized and freed.
// options: guard:1
// expect-status: 0
#include "abuse.h"

int main(void) {
  heap_still_works();
  for (size_t size = 1; size < 9000; size += 7) {
    char *object = (char *)calloc(1, size);
    require(object != NULL, "calloc");
    for (size_t i = 0; i < size; i++) require(object[i] == 0, "zeros");
    memset(object, 1, size);
    object = (char *)realloc(object, size / 2 + 1);
    require(object != NULL && object[size / 2] == 1, "realloc");
    free(object);
  }
  heap_still_works();
  return 0;
}
