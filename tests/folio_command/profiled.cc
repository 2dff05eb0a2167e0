// A program whose places of allocation are known, for `folio profile`. It does what each letter of its standard input
// says, and answers with a line.
//
//   a   allocates a round: 3000 objects of 64 bytes, 1000 of 1000, 100 of 20000, each size in a function of its own
//   f   frees the last round
//   x   frees it from another thread
//   t   four threads named worker-N allocate 200 objects of 1000 bytes each
//   c   allocates and frees 2000 objects of 500 bytes
//   d   allocates 500 objects of 1000 bytes below 200 frames of 100 bytes
//   r   allocates 500 objects of 1000 bytes in a function with an aligned frame, which is unwound by an expression
//   s   allocates 500 objects of 1000 bytes in a handler of a signal
//   l   loads a library (argv[1]) and has it allocate 500 objects of 1000 bytes
//   u   ends these threads, and unloads the library
//   e   runs itself again (exec)
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace {

std::vector<void*> held;
const char* path;

void keep(void* object, size_t size) {
  if (object == nullptr) abort();
  memset(object, 1, size);
  held.push_back(object);
}

}  // namespace

// Not inlined, and with something to do after the call: so each is a frame.
#if defined(__clang__)
#define SITE __attribute__((noinline))
#else
#define SITE __attribute__((noinline, noclone))
#endif

SITE void small_site(unsigned count) {
  for (unsigned i = 0; i < count; ++i) keep(malloc(64), 64);
}
SITE void middle_site(unsigned count) {
  for (unsigned i = 0; i < count; ++i) keep(operator new(1000), 1000);
}
SITE void large_site(unsigned count) {
  for (unsigned i = 0; i < count; ++i) keep(calloc(20, 1000), 20000);
}
SITE void short_lived_site(unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    void* const object = malloc(500);
    memset(object, 1, 500);
    asm volatile("" : : "r"(object) : "memory");
    free(object);
  }
}
SITE void deep_site(unsigned depth, unsigned count) {
  volatile char frame[100];
  frame[0] = 1;
  if (depth == 0) {
    middle_site(count);
  } else {
    deep_site(depth - 1, count);
  }
  frame[1] = frame[0];
}
SITE void aligned_site(unsigned count) {
  alignas(128) volatile char frame[256];
  frame[count % 256] = 1;
  middle_site(count);
  frame[1] = frame[0];
}
SITE void handler(int) {
  middle_site(500);
  held.shrink_to_fit();
}
SITE void worker_site(std::vector<void*>* to) {
  for (unsigned i = 0; i < 200; ++i) {
    to->push_back(malloc(1000));
    memset(to->back(), 1, 1000);
  }
}

SITE void round_of_all() {
  small_site(3000);
  middle_site(1000);
  large_site(100);
  asm volatile("");  // what is called last would have no frame below it
}

namespace {

void free_all() {
  for (void* object : held) free(object);
  held.clear();
}

std::vector<void*> of_worker[4];
std::vector<std::thread> workers;
std::atomic<unsigned> done{0};
std::atomic<bool> leave{false};
void* library;

void work(unsigned number) {
  char name[16];
  snprintf(name, sizeof name, "worker-%u", number);
  pthread_setname_np(pthread_self(), name);
  worker_site(&of_worker[number]);
  ++done;
  while (!leave) usleep(1000);
}

void start_threads() {
  for (unsigned i = 0; i < 4; ++i) workers.emplace_back(work, i);
  while (done != 4) usleep(1000);
}

void load() {
  library = dlopen(path, RTLD_NOW);
  auto* const allocate = reinterpret_cast<void* (*)(size_t)>(dlsym(library, "unloaded_site"));
  if (allocate == nullptr) abort();
  for (unsigned i = 0; i < 500; ++i) keep(allocate(1000), 1000);
}

void end_and_unload() {
  leave = true;
  for (std::thread& worker : workers) worker.join();
  workers.clear();
  if (library != nullptr) dlclose(library);
}

}  // namespace

int main(int argc, char** argv) {
  path = argc > 1 ? argv[1] : "";
  held.reserve(100000);
  signal(SIGUSR1, handler);
  puts("{}");
  fflush(stdout);
  char letter;
  while (read(0, &letter, 1) > 0) {
    if (letter == 'a') round_of_all();
    if (letter == 'f') free_all();
    if (letter == 'x') std::thread(free_all).join();
    if (letter == 't') start_threads();
    if (letter == 'c') short_lived_site(2000);
    if (letter == 'd') deep_site(200, 500);
    if (letter == 'r') aligned_site(500);
    if (letter == 's') raise(SIGUSR1);
    if (letter == 'l') load();
    if (letter == 'u') end_and_unload();
    if (letter == 'e') execv("/proc/self/exe", argv);
    if (letter != '\n' && write(1, "\n", 1) != 1) return 1;
  }
  return 0;
}
