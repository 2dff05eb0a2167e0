// A library that a program opens: it makes and drops objects; whose malloc that is, the loader says. With OWN_MALLOC it
// is one of its own.
#include <stdlib.h>

#ifdef OWN_MALLOC
static char room[1 << 16];
static size_t used;

void* malloc(size_t size) {
  void* const object = room + used;
  used += (size + 15) / 16 * 16;
  return object;
}

void free(void* object) { (void)object; }
#endif

void* plugin_make(void) { return malloc(100); }

void plugin_drop(void* object) { free(object); }
