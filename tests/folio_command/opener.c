// Opens a library and waits for its standard input to end.
//
//   opener plain PLUGIN   as most programs do
//   opener deep PLUGIN    with RTLD_DEEPBIND
//   opener cross PLUGIN   so too, and frees an object of the library's
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void* Make(void);
typedef void Drop(void*);

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int flags = strcmp(argv[1], "plain") == 0 ? RTLD_NOW : RTLD_NOW | RTLD_DEEPBIND;
  void* const plugin = dlopen(argv[2], flags);
  if (plugin == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  Make* const make = (Make*)dlsym(plugin, "plugin_make");
  Drop* const drop = (Drop*)dlsym(plugin, "plugin_drop");
  free(malloc(100));
  if (strcmp(argv[1], "cross") == 0) {
    free(make());
  } else {
    drop(make());
  }
  puts("{}");
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) {
  }
  return 0;
}
