// Programs with a heap that is known to the byte, for the `folio` command to look at. Each prints one line of JSON when
// its heap stands, and then waits for its standard input to end.
//
//   heap known            objects of several sizes, some of them freed; addresses and counts
//   heap wide GIB         so many GiB of objects that nobody touches
//   heap load THREADS     threads that allocate, free and pass objects on, until the end; how much is live, from, to
//   heap scattered PAGES  one huge object, of which every third page is touched, so many of them
//   heap passed OBJECTS   objects of 64 bytes that another thread has freed
//   heap counted          at each `m` it reads so many mallocs of known sizes; it says when it has
//   heap guarded          a hundred objects of 1000 bytes, the first half freed; the addresses of the first, the last
//   heap quiet MIB        frees so much of its memory and then does nothing
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

namespace {

void wait_for_end() {
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) {
  }
}

void* touched(size_t bytes) {
  void* const object = malloc(bytes);
  if (object == nullptr) abort();
  memset(object, 1, bytes);
  return object;
}

// Of each size so many objects, of which every `keep`th stays.
struct Group {
  size_t size, count, keep;
  size_t held, freed, held_pages, freed_pages, first, a_freed;
  void* objects[10000];
};
Group groups[4];

void fill(Group& g, size_t size, size_t count, size_t keep) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  g.size = size;
  g.count = count;
  g.keep = keep;
  for (size_t i = 0; i < count; ++i) {
    g.objects[i] = touched(size);
    const auto at = reinterpret_cast<size_t>(g.objects[i]);
    const size_t pages = (at + size - 1) / page - at / page + 1;
    const bool keeps = i % keep == 0;
    ++(keeps ? g.held : g.freed);
    (keeps ? g.held_pages : g.freed_pages) += pages;
    if (i == 0) g.first = at;
    if (!keeps) g.a_freed = at;
  }
}

void thin(Group& g) {
  for (size_t i = 0; i < g.count; ++i) {
    if (i % g.keep != 0) free(g.objects[i]);
  }
}

int known() {
  fill(groups[0], 64, 10000, 1);
  fill(groups[1], 1000, 4000, 2);
  fill(groups[2], 5000, 600, 3);
  fill(groups[3], 100000, 40, 2);
  void* const huge = touched(size_t{9} << 20);
  // Of which one byte in two MiB is touched. (What is to be zero gets no huge pages; the same below.)
  void* const half = calloc(1, size_t{16} << 20);
  for (size_t at = 0; at < size_t{16} << 20; at += size_t{2} << 20) static_cast<char*>(half)[at] = 1;
  void* const free_huge = touched(size_t{10} << 20);
  for (Group& g : groups) thin(g);
  free(free_huge);
  printf("{\"groups\": [");
  for (const Group& g : groups) {
    printf("%s{\"size\": %zu, \"held\": %zu, \"freed\": %zu, \"held_pages\": %zu, \"freed_pages\": %zu, ",
           &g == groups ? "" : ", ", g.size, g.held, g.freed, g.held_pages, g.freed_pages);
    printf("\"first\": %zu, \"a_freed\": %zu}", g.first, g.a_freed);
  }
  printf("], \"huge\": %zu, \"half\": %zu, \"free_huge\": %zu, \"in_data\": %zu}\n", reinterpret_cast<size_t>(huge),
         reinterpret_cast<size_t>(half), reinterpret_cast<size_t>(free_huge), reinterpret_cast<size_t>(groups));
  wait_for_end();
  return 0;
}

int wide(size_t gib) {
  constexpr size_t kSize = 64;
  const size_t count = (gib << 30) / kSize;
  for (size_t i = 0; i < count; ++i) {
    if (malloc(kSize) == nullptr) abort();
  }
  printf("{\"size\": %zu, \"count\": %zu}\n", kSize, count);
  wait_for_end();
  return 0;
}

constexpr size_t kSlots = 40000;
constexpr size_t kSizes[] = {24, 64, 200, 1000, 3000};
std::atomic<void*> slots[kSlots];
std::atomic<bool> stop{false};
std::atomic<size_t> operations{0};
std::atomic<unsigned> warm{0};

constexpr size_t kWarm = 25000;  // exchanges, after which a thread has its caches

// Every slot always holds an object, but for the one that a thread is just exchanging: it then holds one more.
void exchange(unsigned seed) {
  std::minstd_rand random(seed);
  size_t n = 0;
  while (!stop.load(std::memory_order_relaxed)) {
    const size_t slot = random() % kSlots;
    void* const fresh = malloc(kSizes[slot % 5]);
    static_cast<char*>(fresh)[0] = 1;
    free(slots[slot].exchange(fresh));
    if (++n % 1024 == 0) operations.fetch_add(1024, std::memory_order_relaxed);
    if (n == kWarm) ++warm;
  }
}

int load(unsigned threads) {
  size_t held = 0;
  for (size_t i = 0; i < kSlots; ++i) {
    slots[i] = touched(kSizes[i % 5]);
    held += malloc_usable_size(slots[i]);
  }
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t) workers.emplace_back(exchange, t + 1);
  while (warm != threads) usleep(1000);
  printf("{\"objects\": %zu, \"bytes\": %zu, \"operations_at\": %zu}\n", kSlots, held,
         reinterpret_cast<size_t>(&operations));
  wait_for_end();
  stop = true;
  for (std::thread& worker : workers) worker.join();
  printf("%zu\n", operations.load());
  return 0;
}

int scattered(size_t pages) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* const object = static_cast<char*>(calloc(pages * 3, page));
  for (size_t i = 0; i < pages; ++i) object[i * 3 * page] = 1;
  printf("{}\n");
  wait_for_end();
  return 0;
}

int passed(size_t count) {
  std::vector<void*> objects, kept;
  for (size_t i = 0; i < count; ++i) objects.push_back(touched(64));
  // If little stayed live, the caches would be emptied.
  for (size_t i = 0; i < count; ++i) kept.push_back(touched(1000));
  std::thread([&] {
    for (void* object : objects) free(object);
  }).join();
  printf("{}\n");
  wait_for_end();
  return 0;
}

int quiet(size_t mib) {
  std::vector<void*> objects;
  for (size_t i = 0; i < (mib << 20) / 5000; ++i) objects.push_back(touched(5000));
  for (void* object : objects) free(object);
  printf("{\"freed\": %zu}\n", mib << 20);
  wait_for_end();
  return 0;
}

// The first half of the objects stays, and one in three of the rest.
int thinned(size_t mib) {
  constexpr size_t kSize = 304;
  std::vector<void*> objects;
  for (size_t i = 0; i < (mib << 20) / kSize; ++i) objects.push_back(touched(kSize));
  for (size_t i = objects.size() / 2; i < objects.size(); ++i) {
    if (i % 3 != 0) free(objects[i]);
  }
  printf("{}\n");
  wait_for_end();
  return 0;
}

}  // namespace

// Nothing else of it calls malloc.
void allocate(size_t size, unsigned times) {
  for (unsigned i = 0; i < times; ++i) free(malloc(size));
}

int guarded() {
  static void* objects[100];
  for (void*& object : objects) object = touched(1000);
  for (size_t i = 0; i < 50; ++i) free(objects[i]);
  printf("{\"freed\": %zu, \"live\": %zu}\n", reinterpret_cast<size_t>(objects[0]),
         reinterpret_cast<size_t>(objects[99]));
  wait_for_end();
  return 0;
}

int counted() {
  printf("{}\n");
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) {
    if (c == 'm') {
      allocate(24, 5000);
      allocate(1000, 3000);
      allocate(100000, 20);
      allocate(size_t{20} << 20, 2);
    }
    if (c != '\n' && write(1, "\n", 1) != 1) return 1;
  }
  return 0;
}

int main(int argc, char** argv) {
  const size_t number = argc > 2 ? strtoul(argv[2], nullptr, 10) : 1;
  // Also where the system's setting is `always`, only what is touched shall be resident.
  const bool by_the_page = argc > 1 && (strcmp(argv[1], "known") == 0 || strcmp(argv[1], "scattered") == 0);
  if (by_the_page) prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  if (argc > 1 && strcmp(argv[1], "known") == 0) return known();
  if (argc > 1 && strcmp(argv[1], "wide") == 0) return wide(number);
  if (argc > 1 && strcmp(argv[1], "load") == 0) return load(static_cast<unsigned>(number));
  if (argc > 1 && strcmp(argv[1], "scattered") == 0) return scattered(number);
  if (argc > 1 && strcmp(argv[1], "passed") == 0) return passed(number);
  if (argc > 1 && strcmp(argv[1], "quiet") == 0) return quiet(number);
  if (argc > 1 && strcmp(argv[1], "counted") == 0) return counted();
  if (argc > 1 && strcmp(argv[1], "guarded") == 0) return guarded();
  if (argc > 1 && strcmp(argv[1], "thinned") == 0) return thinned(number);
  fprintf(stderr,
          "usage: heap known | wide GIB | load THREADS | scattered PAGES | passed OBJECTS | quiet MIB | thinned MIB |\n"
          "            counted | guarded\n");
  return 2;
}
