/* Prints options as they are in force, named on the command line, after some allocating. */
#include <folio/folio.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { kObjects = 1000 };

int main(int count, char **arguments) {
  static void *objects[kObjects];
  for (size_t i = 0; i < kObjects; i++) objects[i] = malloc(i * 50);
  for (size_t i = 0; i < kObjects; i++) free(objects[i]);
  for (int i = 1; i < count; i++) {
    int64_t value = 0;
    if (folio_option_get(arguments[i], &value)) {
      printf("%s=%" PRId64 "\n", arguments[i], value);
    } else {
      printf("%s unknown\n", arguments[i]);
    }
  }
  return 0;
}
