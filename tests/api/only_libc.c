/* Calls no malloc itself: only the libc does. Linked statically and dynamically with the override object, it shows that
 * Folio serves the libc, which an archive on the linker's line would not achieve. */
#include <dirent.h>
#include <folio/folio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) { return strcmp((const char *)a, (const char *)b); }

int main(int count, char **arguments) {
  FILE *file = fopen(count > 0 ? arguments[0] : "/proc/self/maps", "r");
  if (file == NULL) return 1;
  char *line = NULL;
  size_t capacity = 0;
  if (getline(&line, &capacity, file) <= 0) return 2;
  char *copy = strdup("a string that the libc copies");
  char *path = realpath("/proc/self/../..", NULL);
  DIR *directory = opendir("/");
  if (copy == NULL || path == NULL || directory == NULL || readdir(directory) == NULL) return 3;
  char *text = NULL;
  size_t length = 0;
  FILE *memory = open_memstream(&text, &length);
  if (memory == NULL) return 4;
  /* qsort takes a buffer from malloc for elements this large and many. */
  static char elements[300][200];
  for (int i = 0; i < 300; i++) snprintf(elements[i], sizeof elements[i], "%d", i * 7919 % 300);
  qsort(elements, 300, sizeof elements[0], compare);
  fprintf(memory, "%s", elements[299]);
  if (fclose(memory) != 0 || strcmp(text, "99") != 0) return 5;
  printf("file %d\n", folio_is_ours(file));
  printf("getline %d\n", folio_is_ours(line));
  printf("strdup %d\n", folio_is_ours(copy));
  printf("realpath %d\n", folio_is_ours(path));
  printf("opendir %d\n", folio_is_ours(directory));
  printf("open_memstream %d\n", folio_is_ours(text));
  closedir(directory);
  fclose(file);
  return 0;
}
