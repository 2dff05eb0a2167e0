// resolve NAME...
//
// Allocates and frees through every function of the malloc family, in two threads, then prints for each NAME the file
// that the loader took it from, and the process's map. build_peers.py runs it under each peer.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void use(void *object, size_t size) {
  if (object == NULL || malloc_usable_size(object) < size) abort();
  memset(object, 0xA5, size);
}

static void *exercise(void *unused) {
  for (size_t size = 1; size < (size_t)8 << 20; size += size / 3 + 1) {
    void *resized = malloc(size), *zeroed = calloc(3, size), *aligned = NULL;
    use(resized, size);
    resized = realloc(resized, 2 * size);
    use(resized, 2 * size);
    for (size_t i = 0; i < 3 * size; i++) {
      if (((unsigned char *)zeroed)[i] != 0) abort();
    }
    use(zeroed, 3 * size);
    if (posix_memalign(&aligned, 256, size) != 0 || (uintptr_t)aligned % 256 != 0) abort();
    use(aligned, size);
    void *rounded = aligned_alloc(64, (size + 63) / 64 * 64);
    if ((uintptr_t)rounded % 64 != 0) abort();
    use(rounded, size);
    free(resized);
    free(zeroed);
    free(aligned);
    free(rounded);
  }
  return unused;
}

int main(int argc, char **argv) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, exercise, NULL) != 0) return 1;
  exercise(NULL);
  if (pthread_join(thread, NULL) != 0) return 1;
  for (int i = 1; i < argc; i++) {
    Dl_info place;
    void *function = dlsym(RTLD_DEFAULT, argv[i]);
    if (function == NULL || dladdr(function, &place) == 0) return 1;
    printf("%s %s\n", argv[i], place.dli_fname);
  }
  FILE *maps = fopen("/proc/self/maps", "r");
  if (maps == NULL) return 1;
  for (int c; (c = getc(maps)) != EOF;) putchar(c);
  return fclose(maps) != 0 || fflush(stdout) != 0;
}
