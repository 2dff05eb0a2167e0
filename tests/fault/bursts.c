/* Cycles of bursts: MIB of objects of one size are live, then gone, and then wanted in another size. Says at the end
 * what it met: bursts MIB ROUNDS. Run by check_cgroup.py. */
#include <fcntl.h>
#include <folio/folio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t sizes[] = {32, 112, 1088, 2560, 5120, 16384, 28672, 98304, 1048576, 12582912};

static int burst(size_t size, size_t bytes) {
  const size_t count = bytes / size;
  char **objects = malloc(count * sizeof *objects);
  if (objects == NULL) return 1;
  for (size_t i = 0; i < count; i++) {
    objects[i] = malloc(size);
    if (objects[i] == NULL) return 1;
    for (size_t at = 0; at < size; at += 4096) objects[i][at] = 1;
  }
  for (size_t i = 0; i < count; i++) free(objects[i]);
  free(objects);
  return 0;
}

static unsigned long status(const char *name) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[256];
  unsigned long kib = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, name, strlen(name)) == 0) kib = strtoul(line + strlen(name) + 1, NULL, 10);
  }
  fclose(file);
  return kib;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const size_t bytes = strtoul(argv[1], NULL, 10) << 20;
  for (long round = strtol(argv[2], NULL, 10); round > 0; round--) {
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
      if (burst(sizes[i], bytes) != 0) return 1;
    }
  }
  const int lowest = open("/dev/null", O_RDONLY);
  int high = 0;
  for (int descriptor = 4; descriptor < 1000; descriptor++) high += fcntl(descriptor, F_GETFD) >= 0;
  folio_limit limit = {.struct_size = sizeof limit};
  folio_limit_get(&limit);
  printf("soft=%zu peak_kib=%lu lowest=%d high=%d\n", limit.soft, status("VmHWM"), lowest, high);
  return 0;
}
