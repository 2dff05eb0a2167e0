/* late LIBRARY: loads the embedding variant by name, as a plug-in would. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments) {
  if (count != 2) return 2;
  void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 3;
  }
  void *(*allocate)(size_t) = NULL;
  void (*release)(void *) = NULL;
  *(void **)&allocate = dlsym(library, "folio_malloc");
  *(void **)&release = dlsym(library, "folio_free");
  if (allocate == NULL || release == NULL) return 4;
  char *object = allocate(1000);
  if (object == NULL) return 5;
  memset(object, 1, 1000);
  release(object);
  return dlclose(library);
}
