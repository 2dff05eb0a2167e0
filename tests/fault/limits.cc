// What happens when address space, mappings or a container's memory run out. One case a run, named on the command line
// (check_limits.py runs them all, some under a limit that holds from exec on).
#include <errno.h>
#include <fcntl.h>
#include <folio/folio.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <initializer_list>

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr int kSkipped = 77;

[[noreturn]] void fail(const char* what, size_t detail) {
  fprintf(stderr, "limits: %s (%zu)\n", what, detail);
  _exit(1);
}

void require(bool holds, const char* what, size_t detail = 0) {
  if (!holds) fail(what, detail);
}

template <class T>
T opaque(T value) {
  asm volatile("" : "+r"(value) : : "memory");
  return value;
}

size_t address_space_bytes() {
  // Without a malloc: there may be nothing left for it.
  char text[256] = {};
  const int file = open("/proc/self/statm", O_RDONLY);
  const ssize_t bytes = read(file, text, sizeof text - 1);
  close(file);
  size_t pages = 0;
  require(bytes > 0 && sscanf(text, "%zu", &pages) == 1, "/proc/self/statm");
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Limits the address space to what there is and `more`; the hard limit stays, so that it can be lifted.
void limit_to(size_t more) {
  rlimit limit = {};
  require(getrlimit(RLIMIT_AS, &limit) == 0, "getrlimit");
  limit.rlim_cur = address_space_bytes() + more;
  require(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
}

void lift_limit() {
  rlimit limit = {};
  require(getrlimit(RLIMIT_AS, &limit) == 0, "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  require(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
}

// Objects in a list through their first words, so that nothing else need be allocated.
struct Object {
  Object* next;
  size_t bytes;
};

unsigned char mark_of(const Object* object) { return static_cast<unsigned char>(object->bytes * 7 + 3); }

Object* make(size_t bytes) {
  errno = 0;
  auto* object = static_cast<Object*>(opaque(malloc(bytes)));
  if (object == nullptr) {
    require(errno == ENOMEM, "null without ENOMEM", static_cast<size_t>(errno));
    return nullptr;
  }
  object->bytes = bytes;
  if (bytes > sizeof(Object)) reinterpret_cast<unsigned char*>(object)[bytes - 1] = mark_of(object);
  return object;
}

struct List {
  Object* first = nullptr;
  size_t count = 0, bytes = 0;

  bool add(size_t size) {
    Object* object = make(size);
    if (object == nullptr) return false;
    object->next = first;
    first = object;
    count++;
    bytes += size;
    return true;
  }

  void check() const {
    size_t seen = 0;
    for (const Object* object = first; object != nullptr; object = object->next, seen++) {
      if (object->bytes <= sizeof(Object)) continue;
      const unsigned char last = reinterpret_cast<const unsigned char*>(object)[object->bytes - 1];
      require(last == mark_of(object), "contents", object->bytes);
    }
    require(seen == count, "every object is there", seen);
  }

  void release() {
    check();
    while (first != nullptr) {
      Object* const next = first->next;
      free(first);
      first = next;
    }
    count = bytes = 0;
  }
};

// ---- Cases ----

void* small_thread(void* argument) {
  List list;
  for (size_t i = 0; i < 2000; i++) require(list.add(16 + i % 3000), "a thread of a small program");
  list.release();
  return argument;
}

// A program of modest needs, with threads: runs under 224 MiB of address space from its start.
int modest(size_t) {
  List list;
  for (size_t i = 0; i < 20000; i++) require(list.add(16 + i * 37 % 1000), "a modest program");
  for (size_t size = 1000; size < 2 * kMiB; size *= 2) require(list.add(size), "a modest program", size);
  for (int i = 0; i < 2; i++) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * kKiB);
    require(pthread_create(&thread, &attributes, small_thread, nullptr) == 0, "pthread_create");
    require(pthread_join(thread, nullptr) == 0, "pthread_join");
  }
  list.release();
  return 0;
}

// After a small and a large object: prints how many MiB the program can still map itself.
int own_mappings(size_t) {
  List list;
  require(list.add(100) && list.add(100 * kKiB), "two objects");
  size_t mib = 0;
  while (mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) ++mib;
  printf("%zu\n", mib);
  return 0;
}

// Objects of one size until there are no more. Most of what the limit leaves is used; all of it can be used again, and
// more when the limit lifts.
int exhaust(size_t size) {
  const size_t left = size < 64 ? 60 * kMiB : 300 * kMiB;  // very many tiny ones take long
  List kept, list;
  for (size_t i = 0; i < 1000; i++) require(kept.add(16 + i * 13 % 5000), "before the limit");
  limit_to(left);
  while (list.add(size)) {
  }
  const size_t first = list.bytes;
  require(first >= left / 2, "at least half of the address space left is used", first);
  for (int i = 0; i < 100; i++) require(!list.add(left), "still no room for a huge one");
  kept.check();
  list.release();
  while (list.add(size)) {
  }
  require(list.bytes >= first - first / 10, "as much again", list.bytes);
  lift_limit();
  for (int i = 0; i < 1000 && list.bytes < first * 3 / 2; i++)
    require(list.add(size > kMiB ? size : kMiB), "lifted", size);
  for (int i = 0; i < 1000; i++) require(list.add(size), "the limit is lifted", size);
  list.release();
  kept.release();
  return 0;
}

// Grows a dense object where freed small objects have the address space that is left: its pages move, no copy is made.
int grow_huge(size_t hard_mib) {
  require(folio_set_limit(0, hard_mib * kMiB), "a limit that allows it, or none");
  char* object = static_cast<char*>(memset(malloc(400 * kMiB), 7, 400 * kMiB));
  List list;
  limit_to(700 * kMiB);
  while (list.add(1000)) {
  }
  list.release();
  require(malloc_trim(0) == 1, "memory goes, not address space");
  FILE* const reset = fopen("/proc/self/clear_refs", "w");
  require(reset != nullptr && fputs("5", reset) >= 0 && fclose(reset) == 0, "the peak is that from here on");
  require((object = static_cast<char*>(realloc(object, 600 * kMiB))) != nullptr, "it grows");
  for (size_t i = 0; i < 400 * kMiB; i += kMiB) require(object[i] == 7, "it keeps what it holds", i);
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const size_t peak = static_cast<size_t>(usage.ru_maxrss) * kKiB;
  free(object);
  require(peak > 400 * kMiB && peak < 600 * kMiB, "no copy", peak / kMiB);
  return 0;
}

// Sizes in turn, so that many bins want chunks at the end; then only small ones are freed and asked for again.
int mixed(size_t) {
  limit_to(300 * kMiB);
  List small, others;
  bool room = true;
  for (size_t i = 0; room; i++) {
    room = small.add(16 + i % 900) && small.add(16 + i % 900);
    if (i % 8 == 0) room = others.add(1000 + i * 61 % 60000) && room;
    if (i % 64 == 0) room = others.add(kMiB + i * 997 % (3 * kMiB)) && room;
  }
  const size_t count = small.count;
  small.release();
  others.check();
  for (size_t i = 0; i < count / 4; i++) require(small.add(16 + i % 900), "small ones again");
  others.release();
  small.release();
  // What one kind of object used serves another.
  folio_collect();
  require(others.add(20 * kMiB), "a huge object after small ones");
  others.release();
  return 0;
}

// realloc and its kin at the limit leave the old object as it was.
int refused(size_t) {
  constexpr size_t kBytes = 40 * kMiB;
  auto* object = static_cast<unsigned char*>(opaque(malloc(kBytes)));
  auto* medium = static_cast<unsigned char*>(opaque(malloc(50000)));
  require(object != nullptr && medium != nullptr, "malloc");
  memset(object, 0x5a, kBytes);
  memset(medium, 0xa5, 50000);
  limit_to(10 * kMiB);
  for (const size_t size : {size_t{400} * kMiB, size_t{1} << 40, size_t{1} << 46}) {
    errno = 0;
    require(realloc(object, size) == nullptr && errno == ENOMEM, "realloc of a huge object", size);
    errno = 0;
    require(realloc(medium, size) == nullptr && errno == ENOMEM, "realloc of a large object", size);
    errno = 0;
    require(opaque(calloc(size, 1)) == nullptr && errno == ENOMEM, "calloc", size);
    errno = 0;
    require(opaque(aligned_alloc(64, size)) == nullptr && errno == ENOMEM, "aligned_alloc", size);
    errno = 0;
    require(opaque(memalign(kMiB, size)) == nullptr && errno == ENOMEM, "memalign", size);
    void* out = nullptr;
    errno = 4711;
    require(posix_memalign(&out, 4096, size) == ENOMEM && errno == 4711, "posix_memalign", size);
    require(!folio_expand(object, size), "folio_expand", size);
  }
  for (size_t i = 0; i < kBytes; i++) require(object[i] == 0x5a, "contents of the huge object", i);
  for (size_t i = 0; i < 50000; i++) require(medium[i] == 0xa5, "contents of the large object", i);
  void* const shrunk = realloc(object, 3 * kMiB);
  require(shrunk != nullptr, "shrinking needs no memory");
  free(shrunk);
  free(medium);
  lift_limit();
  return 0;
}

void* tight_thread(void* refused_count) {
  size_t null = 0;
  for (size_t size = 1; size < 4 * kMiB; size = size * 3 / 2 + 1) {
    Object* object = make(size < sizeof(Object) ? sizeof(Object) : size);
    null += object == nullptr;
    free(object);
  }
  *static_cast<size_t*>(refused_count) = null;
  return refused_count;
}

// A new thread when there is nothing left: its first malloc gives null, or an object, and the process goes on.
int thread(size_t) {
  constexpr size_t kStack = 64 * kKiB;
  constexpr int kThreads = 20;
  static char* stacks[kThreads];
  for (char*& stack : stacks) {
    stack = static_cast<char*>(
        mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0));
    require(stack != MAP_FAILED, "mmap");
  }
  // What the libc itself needs for a thread is there again when they start: its vector of thread-local blocks.
  List reserve;
  for (size_t i = 0; i < 200; i++) require(reserve.add(240 + i / 10 * 16), "before the limit");
  limit_to(50 * kMiB);
  List huge, small;
  for (size_t size = 8 * kMiB; size >= sizeof(Object); size = size * 2 / 3) {
    while (huge.add(size)) {
    }
  }
  while (small.add(sizeof(Object))) {
  }
  reserve.release();
  size_t started = 0, null = 0;
  for (char* stack : stacks) {
    pthread_t id;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, kStack);
    const int error = pthread_create(&id, &attributes, tight_thread, &null);
    // The libc, too, needs a little for a thread.
    require(error == 0 || error == EAGAIN || error == ENOMEM, "pthread_create", static_cast<size_t>(error));
    if (error == 0) {
      require(pthread_join(id, nullptr) == 0, "pthread_join");
      require(null > 0, "the limit is felt");
      started++;
    }
  }
  require(started > 0, "a thread starts");
  huge.check();
  small.release();
  huge.release();
  // With room again, they all start and find it. Their stacks are there already: address space that Folio has had for
  // small objects stays with it.
  for (char* stack : stacks) {
    pthread_t id;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, kStack);
    require(pthread_create(&id, &attributes, small_thread, nullptr) == 0, "a thread with room");
    require(pthread_join(id, nullptr) == 0, "pthread_join");
  }
  printf("%zu of %d threads started\n", started, kThreads);
  return 0;
}

// As many mappings as the process may have (max_map_count).
struct AllMappings {
  static constexpr size_t kPages = 200000;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* pages;
  size_t split = 0;

  AllMappings() {
    pages = static_cast<char*>(mmap(nullptr, kPages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    require(pages != MAP_FAILED, "mmap");
    while (split < kPages && mprotect(pages + split * page, page, PROT_READ) == 0) split += 2;
    if (split < kPages) return;
    printf("skipped: the system allows more mappings than %zu\n", kPages);
    fflush(stdout);
    _exit(kSkipped);
  }
  void release() const { require(munmap(pages, kPages * page) == 0, "munmap"); }
};

folio_stats statistics() {
  folio_stats stats = {};
  stats.struct_size = sizeof stats;
  require(folio_stats_get(&stats), "statistics");
  return stats;
}

// Then: what one round used serves the next one, though many mallocs of many sizes are refused; nothing is lost by it.
int mapping_turns(size_t) {
  const AllMappings all;
  size_t first = 0, metadata = 0;
  for (size_t round = 0; round < 6; round++) {
    List list;
    for (size_t i = 0, null = 0; null < 20000; i++) {
      null += !list.add(round % 2 == 0 ? size_t{16} << i % 10 : 16 + i * 7919 % 32000);
    }
    if (round == 0) first = list.bytes;
    require(first >= 20 * kMiB, "what the first round has", first);
    require(list.bytes >= first * 2 / 3, "as much in each round", list.bytes);
    if (round == 1) metadata = statistics().metadata;
    list.release();
  }
  // Bins come to more places; but with 88 bytes for each refused malloc it would be 7 MiB more.
  require(statistics().metadata <= metadata + kMiB, "metadata of later rounds", statistics().metadata);
  return 0;
}

// Then a malloc that wants address space has chunks unmapped amid mappings: those that the kernel refuses serve again.
int mapping_holes(size_t) {
  constexpr size_t kSize = 16384;
  List holes;
  for (size_t i = 0; i < 15000; i++) require(holes.add(kSize), "before");
  const size_t chunks = statistics().chunks;
  const AllMappings all;
  List kept;
  size_t number = 0;
  for (Object *object = holes.first, *next; object != nullptr; object = next) {
    next = object->next;
    if (number++ % 256 != 0) {
      free(object);
    } else {
      object->next = kept.first;
      kept.first = object;
      kept.count++;
    }
  }
  require(!kept.add(200 * kMiB), "no room for a huge one");
  all.release();
  kept.release();
  const size_t space = address_space_bytes() + statistics().reserved;  // one more region, as large as all others
  List again;
  for (size_t i = 0; i < 15000; i++) require(again.add(kSize), "again");
  require(statistics().chunks <= chunks + 8, "in the same chunks", statistics().chunks);
  require(address_space_bytes() <= space + 20 * kMiB, "in the same address space", address_space_bytes() - space);
  again.release();
  return 0;
}

// max_map_count: the process has as many mappings as it may. What needs one more fails; all else goes on.
int mappings(size_t) {
  List list;
  for (size_t i = 0; i < 3000; i++) require(list.add(16 + i * 97 % 100000), "before");
  for (size_t i = 0; i < 20; i++) require(list.add(3 * kMiB), "before");
  const AllMappings all;
  List more;
  size_t null = 0;
  for (size_t i = 0; i < 20000; i++) null += !more.add(16 + i * 89 % 200000);
  for (size_t i = 0; i < 200; i++) null += !more.add(kMiB + i * 50000);
  list.check();
  more.check();
  auto* grown = static_cast<unsigned char*>(opaque(malloc(2 * kMiB)));
  for (size_t size = 3 * kMiB; grown != nullptr && size < 50 * kMiB; size *= 2) {
    memset(grown, 0x3c, 2 * kMiB);
    void* const moved = realloc(grown, size);
    if (moved == nullptr) break;
    grown = static_cast<unsigned char*>(moved);
    for (size_t i = 0; i < 2 * kMiB; i += 500) require(grown[i] == 0x3c, "contents after realloc", i);
  }
  free(grown);
  for (size_t i = 0; i < 5; i++) {
    void* const aligned = opaque(aligned_alloc(8 * kMiB, 3 * kMiB));
    null += aligned == nullptr;
    free(aligned);
  }
  more.release();
  folio_collect();
  list.check();
  all.release();
  for (size_t i = 0; i < 20000; i++) require(more.add(16 + i * 89 % 20000), "recovered");
  for (size_t i = 0; i < 50; i++) require(more.add(5 * kMiB), "recovered");
  more.release();
  list.release();
  printf("%zu mappings split, %zu allocations refused\n", all.split / 2, null);
  return 0;
}

size_t status_bytes(const char* key) {
  FILE* file = fopen("/proc/self/status", "r");
  char line[200];
  size_t kib = 0;
  while (file != nullptr && fgets(line, sizeof line, file) != nullptr) {
    if (strncmp(line, key, strlen(key)) == 0) kib = strtoul(line + strlen(key), nullptr, 10);
  }
  require(file != nullptr, "/proc/self/status");
  fclose(file);
  return kib * kKiB;
}

// mlockall with these flags: what is resident grows by what is in use, and at most 12 MiB: 2 MiB by 2 MiB.
int locked(size_t flags) {
  constexpr size_t kMore = 12 * kMiB;
  const size_t before = status_bytes("VmRSS:");
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if ((limit.rlim_cur != RLIM_INFINITY && geteuid() != 0) || mlockall(static_cast<int>(flags)) != 0) {
    printf("skipped: no memory may be locked here\n");
    return kSkipped;
  }
  // The libc's own data come too, which it would have had to page in.
  size_t resident = status_bytes("VmRSS:");
  require(resident < before + kMore, "resident after mlockall", resident);
  List list;
  for (size_t size = 16; size < 8 * kMiB; size = size * 3 / 2) require(list.add(size), "malloc", size);
  require(list.add(20 * kMiB), "malloc of a huge one");
  resident = status_bytes("VmRSS:");
  require(resident < before + list.bytes + kMore, "resident with objects of many sizes", resident);
  list.release();
  // The kernel refuses to take pages: 3,300 tries here, 14,300 if no pass in vain made the next one wait.
  for (size_t round = 0; round < 3; round++) {
    for (size_t i = 0; i < 50000; i++) require(list.add(16 + i % 1500), "malloc");
    list.release();
  }
  require(statistics().purge_calls < 6000, "calls that purge", statistics().purge_calls);
  return 0;
}

// A limit on data: what is free serves, the rest is refused, until the limit is lifted.
int data(size_t size) {
  rlimit limit = {};
  require(getrlimit(RLIMIT_DATA, &limit) == 0, "getrlimit");
  List kept, list;
  for (size_t i = 0; i < 1000; i++) require(kept.add(16 + i * 13 % 5000), "before the limit");
  limit.rlim_cur = status_bytes("VmData:") + 50 * kMiB;
  require(setrlimit(RLIMIT_DATA, &limit) == 0, "setrlimit");
  while (list.add(size)) {
  }
  const size_t most = list.bytes, space = address_space_bytes();
  require(most >= 35 * kMiB, "most of what the limit leaves is used", most);
  // What a search has left that the kernel refused (the rest of a step, a larger bin's) may serve the next ones.
  size_t more = 0;
  for (int i = 0; i < 1000; i++) more += list.add(size) ? 1 : 0;
  require(more <= 100, "hardly more of this size", more);
  require(address_space_bytes() == space, "what is refused takes no address space", address_space_bytes() - space);
  kept.check();
  list.release();
  folio_collect();
  while (list.add(size)) {
  }
  require(list.bytes >= most - most / 10, "as much again", list.bytes);
  limit.rlim_cur = limit.rlim_max;
  require(setrlimit(RLIMIT_DATA, &limit) == 0, "setrlimit");
  for (int i = 0; i < 100; i++) require(list.add(kMiB), "lifted");
  list.release();
  kept.release();
  return 0;
}

// The same for sizes by turns: what one has freed serves the next one, also a bin's that is new and needs metadata.
int data_turns(size_t) {
  constexpr size_t kMost = 60 * kMiB;
  rlimit limit = {};
  require(getrlimit(RLIMIT_DATA, &limit) == 0, "getrlimit");
  limit.rlim_cur = status_bytes("VmData:") + kMost;
  require(setrlimit(RLIMIT_DATA, &limit) == 0, "setrlimit");
  for (const size_t size : {100, 1000, 3000000, 30, 700, 100, 40000, 1000, 60, 16, 200000, 300, 5000}) {
    List list;
    while (list.add(size)) {
    }
    // 16 bytes are what a list's links take.
    require(list.bytes >= kMost * 5 / 8, "most of what the limit leaves serves each size", size);
    list.release();
  }
  return 0;
}

// A limit of Folio's own: where it refuses, chunks stay with their bins, as a chunk that comes again costs metadata.
int own_limit(size_t) {
  constexpr size_t kLimit = 24 * kMiB;
  require(folio_set_limit(0, kLimit), "folio_set_limit");
  size_t chunks = 0;
  for (size_t round = 0; round < 60; round++) {
    List list;
    const size_t most = size_t{16} << round * 5 % 12;
    for (size_t i = 0, null = 0; null < 20; i++) null += !list.add(16 + i * 7919 % most);
    list.release();
    const size_t now = statistics().chunks;
    require(now >= chunks, "chunks are not unmapped", now);
    chunks = now;
  }
  return 0;
}

// Bursts of one size class after the other, each of `mib`, in a container of little more: what one burst has freed must
// not still be resident when the next one comes. The kernel kills the process that keeps it.
int bursts(size_t mib) {
  static constexpr size_t kSizes[] = {32, 200, 1000, 7000, 50000, 400000, 3 * kMiB, 12 * kMiB};
  for (const size_t size : kSizes) {
    List list;
    while (list.bytes < mib * kMiB) {
      require(list.add(size), "a burst", size);
      memset(list.first + 1, 1, size - sizeof(Object) - 1);
    }
    list.bytes = 0;
    for (Object* object = list.first; object != nullptr;) {
      Object* const next = object->next;
      free(object);
      object = next;
    }
  }
  return 0;
}

struct Case {
  const char* name;
  int (*run)(size_t argument);
};

constexpr Case kCases[] = {
    {"modest", modest},
    {"own_mappings", own_mappings},
    {"exhaust", exhaust},
    {"grow_huge", grow_huge},
    {"mixed", mixed},
    {"refused", refused},
    {"thread", thread},
    {"mappings", mappings},
    {"mapping_turns", mapping_turns},
    {"mapping_holes", mapping_holes},
    {"bursts", bursts},
    {"locked", locked},
    {"data", data},
    {"data_turns", data_turns},
    {"own_limit", own_limit},
};

}  // namespace

int main(int count, char** arguments) {
  const size_t argument = count > 2 ? strtoul(arguments[2], nullptr, 10) : 0;
  for (const Case& one : kCases) {
    if (count > 1 && strcmp(arguments[1], one.name) == 0) return one.run(argument);
  }
  fprintf(stderr, "usage: limits CASE [NUMBER]\n");
  return 2;
}
