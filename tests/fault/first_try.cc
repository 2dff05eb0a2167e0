// Calls that were refused although free memory would have done: the second call got it. One case a run, named on the
// command line, near a limit.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <algorithm>

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

int fail(const char* what) {
  fprintf(stderr, "first_try: %s\n", what);
  return 1;
}

// The program's address space, or what of it is writable (VmData), and `more` bytes.
void limit(decltype(RLIMIT_AS) which, const char* line, size_t more) {
  char text[4096] = {};
  FILE* const file = fopen("/proc/self/status", "r");
  const size_t got = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  const char* const at = got == 0 ? nullptr : strstr(text, line);
  if (at == nullptr) exit(77);
  const rlimit bound = {strtoul(at + strlen(line), nullptr, 10) * kKiB + more, RLIM_INFINITY};
  if (setrlimit(which, &bound) != 0) exit(77);
}

// Where small objects have used up all but a freed huge object's address space, and some of a larger size are free that
// are not aligned so.
int aligned() {
  static void* others[4'000'000];
  static void* same[4'000'000];
  size_t n = 0, m = 0;
  limit(RLIMIT_AS, "VmSize:", 220 * kMiB);
  void* const huge = malloc(127 * kMiB);
  if (huge == nullptr) return fail("no huge object");
  for (; n < 4'000'000 && (others[n] = malloc(80)) != nullptr; ++n) {
    if (n % 4 == 0 && (same[m] = malloc(64)) != nullptr) ++m;
  }
  while (m < 3'999'999 && (same[m] = malloc(64)) != nullptr) ++m;
  for (size_t i = 0; i < n; i += 3) free(others[i]);
  free(huge);
  void* object = nullptr;
  for (int i = 0; i < 200; ++i) {
    if (posix_memalign(&object, 64, 64) != 0) return fail("no aligned object");
    if (reinterpret_cast<uintptr_t>(object) % 64 != 0) return fail("not aligned");
  }
  return 0;
}

// Where the thread itself keeps the neighbours that the object needs.
int neighbours() {
  constexpr size_t kBytes = 250 * kKiB;
  static char* objects[20'000];
  for (int i = 0; i < 64; ++i) {  // a thread that allocates such objects keeps those that it frees
    void* volatile object = malloc(kBytes);
    free(object);
  }
  limit(RLIMIT_AS, "VmSize:", 100 * kMiB);
  size_t n = 0;
  while (n < 20'000 && (objects[n] = static_cast<char*>(malloc(kBytes))) != nullptr) ++n;
  std::sort(objects, objects + n);
  unsigned runs = 0;
  for (size_t i = 0; i + 4 <= n; i += 40) {
    const auto apart = static_cast<size_t>(objects[i + 3] - objects[i]);
    if (apart > 3 * kBytes + 256 * kKiB) continue;
    ++runs;
    for (size_t k = i; k < i + 4; ++k) free(objects[k]);
    void* const object = malloc(apart + 200 * kKiB);
    if (object == nullptr) return fail("four neighbours were free");
    free(object);
    for (size_t k = i; k < i + 4; ++k) objects[k] = static_cast<char*>(malloc(kBytes));
  }
  return runs == 0 ? fail("no neighbours") : 0;
}

// Where there is room for what a huge object grows by once another one that was freed is gone, but not for a move.
int growth() {
  limit(RLIMIT_DATA, "VmData:", 1750 * kMiB);
  char* const object = static_cast<char*>(malloc(800 * kMiB));
  void* const other = malloc(800 * kMiB);
  if (object == nullptr || other == nullptr) return fail("no huge objects");
  object[0] = 5;
  free(other);
  const char* const grown = static_cast<char*>(realloc(object, 1000 * kMiB));
  return grown == nullptr ? fail("it does not grow") : grown[0] == 5 ? 0 : fail("it lost what it held");
}

}  // namespace

int main(int count, char** arguments) {
  const char* const name = count > 1 ? arguments[1] : "";
  if (strcmp(name, "aligned") == 0) return aligned();
  if (strcmp(name, "neighbours") == 0) return neighbours();
  if (strcmp(name, "growth") == 0) return growth();
  return fail("which case?");
}
