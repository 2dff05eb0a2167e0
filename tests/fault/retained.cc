// A program that tries to make Folio keep more than docs/limits.md says, term by term: retained CASE. Says at the end
// what is resident beyond what it holds, and what Folio says of it, in KiB: check_retained.py knows the bounds.
#include <fcntl.h>
#include <folio/folio.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

size_t resident() {
  char text[128] = {};
  const int file = open("/proc/self/statm", O_RDONLY);
  const ssize_t bytes = read(file, text, sizeof text - 1);
  close(file);
  size_t all = 0, there = 0;
  if (bytes <= 0 || sscanf(text, "%zu %zu", &all, &there) != 2) abort();
  return there * page;
}

folio_stats stats() {
  folio_stats found = {};
  found.struct_size = sizeof found;
  folio_stats_get(&found);
  return found;
}

size_t resident_before;

void say(size_t held) {
  const size_t now = resident(), own = resident_before + held;
  const folio_stats s = stats();
  printf("retained=%zu held=%zu dirty=%zu cached=%zu fragmented=%zu metadata=%zu chunks=%zu peak=%zu\n",
         (now < own ? 0 : now - own) / kKiB, held / kKiB, s.dirty / kKiB, s.cached / kKiB, s.fragmented / kKiB,
         s.metadata / kKiB, s.chunks, s.resident / kKiB);
}

char* make(size_t size) {
  auto* const object = static_cast<char*>(malloc(size));
  if (object == nullptr) abort();
  for (size_t at = 0; at < size; at += page) object[at] = 1;
  object[size - 1] = 1;
  return object;
}

// Threads that all stand still when what they hold is looked at: their stacks are there before, and stay.
class Threads {
 public:
  Threads(unsigned n, const std::function<void(unsigned)>& work) {
    for (unsigned i = 0; i < n; ++i) {
      threads_.emplace_back([this, i, work] {
        touch_stack();
        arrive_and_wait(1);
        work(i);
        arrive_and_wait(2);
      });
    }
    wait_for(1);
  }
  void run() { go(1), wait_for(2); }
  void end() {
    go(2);
    for (std::thread& t : threads_) t.join();
  }

 private:
  // Not inlined, so that the frame is gone again.
  [[gnu::noinline]] static void touch_stack() {
    volatile char frame[32 * kKiB];
    for (size_t at = 0; at < sizeof frame; at += 1024) frame[at] = 1;
  }
  void arrive_and_wait(unsigned step) {
    arrived_[step].fetch_add(1);
    while (gone_ < step) usleep(2000);
  }
  void wait_for(unsigned step) {
    while (arrived_[step] < threads_.size()) usleep(2000);
  }
  void go(unsigned step) { gone_ = step; }

  std::atomic<unsigned> arrived_[3] = {}, gone_{0};
  std::vector<std::thread> threads_;
};

using Random = std::mt19937_64;

size_t between(Random& random, size_t least, size_t most) { return least + random() % (most - least + 1); }

// `bytes` of objects of these sizes, freed in random order.
void burst(Random& random, size_t least, size_t most, size_t bytes) {
  std::vector<char*> objects;
  objects.reserve(bytes / least + 1);
  for (size_t made = 0; made < bytes;) {
    const size_t size = between(random, least, most);
    objects.push_back(make(size));
    made += size;
  }
  std::shuffle(objects.begin(), objects.end(), random);
  for (char* object : objects) free(object);
}

// Many threads that have cached objects of all sizes, and idle.
void thread_caches() {
  Threads threads(64, [](unsigned) {
    std::vector<char*> objects(130);
    for (unsigned round = 0; round < 3; ++round) {
      for (size_t size = 16; size < 30000; size = size * 5 / 4 + 8) {
        for (char*& object : objects) object = make(size);
        for (char* object : objects) free(object);
      }
    }
  });
  resident_before = resident();
  threads.run();
  say(0);
  threads.end();
}

// One thread, which frees more of all small and medium sizes than a CPU may keep; beside what stays live, as where all
// is gone the caches are drained.
void cpu_caches() {
  Random random(1);
  for (unsigned i = 0; i < 4000; ++i) make(8000);
  resident_before = resident();
  for (unsigned round = 0; round < 3; ++round) {
    for (size_t size = 32; size < 250000; size *= 2) burst(random, size, size * 2 - 1, 16 * kMiB);
  }
  // The caches are drained for bins that look for free chunks of others, as those do that have no pages left: not here.
  burst(random, 3000, 12000, 64 * kMiB);
  say(0);
}

// One thread allocates, another one frees.
void depot() {
  static std::vector<char*> objects;
  objects.reserve(2000000);
  Threads threads(2, [](unsigned i) {
    static std::atomic<bool> made{false};
    if (i == 0) {
      Random random(2);
      for (size_t bytes = 0; bytes < 200 * kMiB;) {
        const size_t size = between(random, 16, random() % 2 == 0 ? 500 : 4000);
        objects.push_back(make(size));
        bytes += size;
      }
      made = true;
    } else {
      while (!made) usleep(1000);
      for (char* object : objects) free(object);
    }
  });
  const size_t table = objects.capacity() * sizeof(char*);
  memset(static_cast<void*>(objects.data()), 1, table);
  resident_before = resident();
  threads.run();
  say(0);
  threads.end();
}

// What a thread without others keeps at once of what it frees.
void dirty_alone(size_t least, size_t most, unsigned turns) {
  Random random(3);
  resident_before = resident();
  for (unsigned turn = 0; turn < turns; ++turn) burst(random, least, most, 300 * kMiB);
  say(0);
}

// What is left when several threads have become quiet, once three looks, so many milliseconds apart, have found no
// less: a loaded machine is slow to purge.
void quiet(unsigned ms) {
  Threads threads(4, [](unsigned i) {
    Random random(i);
    for (const size_t most : {400, 30000, 1000000, 12000000}) {
      for (unsigned round = 0; round < 3; ++round) burst(random, most / 25, most, 40 * kMiB);
    }
  });
  resident_before = resident();
  threads.run();
  size_t least = resident();
  for (unsigned looks = 0, same = 0; same < 3 && looks < 20; ++looks) {
    usleep(ms * 1000);
    const size_t now = resident();
    same = now < least ? 0 : same + 1;
    least = now < least ? now : least;
  }
  say(0);
  threads.end();
}

// One in so many stays, at random: `held` are the pages that they touch.
void survivors(size_t size, unsigned one_in) {
  Random random(4);
  const size_t count = 200 * kMiB / size;
  std::vector<char*> objects(count);
  std::vector<uintptr_t> pages(count / one_in * (size / page + 2));
  memset(static_cast<void*>(pages.data()), 1, pages.size() * sizeof pages[0]);
  pages.clear();
  resident_before = resident();
  for (char*& object : objects) object = make(size);
  std::shuffle(objects.begin(), objects.end(), random);
  for (size_t i = 0; i < count; ++i) {
    if (i % one_in != 0) {
      free(objects[i]);
      continue;
    }
    const auto address = reinterpret_cast<uintptr_t>(objects[i]);
    for (uintptr_t p = address / page; p <= (address + size - 1) / page && pages.size() < pages.capacity(); ++p) {
      pages.push_back(p);
    }
  }
  std::sort(pages.begin(), pages.end());
  const auto touched = static_cast<size_t>(std::unique(pages.begin(), pages.end()) - pages.begin());
  malloc_trim(0);
  say(touched * page);
}

// Objects that nobody touches need chunks and what describes these.
void metadata(size_t size) {
  std::vector<char*> objects(512 * kMiB / size);
  const folio_stats before = stats();
  for (char*& object : objects) object = static_cast<char*>(malloc(size));
  const folio_stats after = stats();
  printf("bytes=%zu\n", (after.metadata - before.metadata) / (after.chunks - before.chunks));
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i) { return i < argc ? strtoul(argv[i], nullptr, 10) : 0; };
  const auto is = [&](const char* name) { return argc > 1 && strcmp(argv[1], name) == 0; };
  if (is("thread_caches")) return thread_caches(), 0;
  if (is("cpu_caches")) return cpu_caches(), 0;
  if (is("depot")) return depot(), 0;
  if (is("dirty_alone")) return dirty_alone(number(2), number(3), static_cast<unsigned>(number(4))), 0;
  if (is("quiet")) return quiet(static_cast<unsigned>(number(2))), 0;
  if (is("survivors")) return survivors(number(2), static_cast<unsigned>(number(3))), 0;
  if (is("metadata")) return metadata(number(2)), 0;
  return 2;
}
