// A library that profiled.cc loads and unloads.
#include <stdlib.h>

extern "C" __attribute__((noinline)) void* unloaded_site(size_t size) {
  void* const object = malloc(size);
  asm volatile("" : : "r"(object) : "memory");
  return object;
}
