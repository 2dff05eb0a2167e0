// Counts what Folio's threads meet on: each atomic read-modify-write by the structure that its address belongs to, and
// how often its line was last changed by another thread. Linked into libfolio-count.so (cmake/Libraries.cmake), which
// is preloaded; bench/scaling.py reads what it writes at exit to the file FOLIO_COUNT_FILE.
//
// Each thread has a CPU of its own, its number in order of its first slow call: os::cpu() is replaced when linking. So
// a machine of two CPUs counts what one of 128 would do, but for the order in which things happen.

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "space/fields.h"
#include "space/large.h"
#include "space/pages.h"
#include "store/bin.h"

namespace {

using namespace folio;

constexpr unsigned kWords = 8;  // of a line of 64 bytes

struct WordCounts {
  uint32_t took;    // takes, pops, entries; and sums
  uint32_t gave;    // gives, pushes
  uint32_t failed;  // compare_exchange that another thread was faster than
  uint32_t passed;  // the line was last changed by another thread
};
struct Line {
  uintptr_t address;
  uint32_t last;  // thread
  WordCounts words[kWords];
};

// Plain memory and the compiler's own atomics: Atomic<T> would count itself.
constexpr unsigned kLines = 1u << 18;
Line lines[kLines];
uint64_t lost;  // read-modify-writes for which there was no line
uint32_t threads;
__thread uint32_t own_number;  // from 1

uint32_t number() {
  if (own_number == 0) own_number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
  return own_number;
}

Line* line_of(uintptr_t address) {
  const uint64_t hash = (address >> 6) * 0x9e3779b97f4a7c15u >> 40;
  for (unsigned i = 0; i < 64; ++i) {
    Line& line = lines[(hash + i) % kLines];
    uintptr_t found = __atomic_load_n(&line.address, __ATOMIC_RELAXED);
    if (found == address) return &line;
    if (found != 0) continue;
    if (__atomic_compare_exchange_n(&line.address, &found, address, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
        found == address) {
      return &line;
    }
  }
  return nullptr;
}

void add(uint32_t& counter) { __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED); }

// What lies where. Statics that have no range are looked up in the library's symbols, by their offset.
struct Range {
  uintptr_t start;
  size_t bytes;
  const char* kind;
  unsigned bin, shard;
  Descriptor* descriptor;  // where it is one: what the word is depends on its place
};
constexpr unsigned kRanges = 1u << 16;
Range ranges[kRanges];
unsigned range_count;

void name(const void* start, size_t bytes, const char* kind, unsigned bin = 0, unsigned shard = 0,
          Descriptor* descriptor = nullptr) {
  if (range_count == kRanges) return;
  ranges[range_count++] = {reinterpret_cast<uintptr_t>(start), bytes, kind, bin, shard, descriptor};
}

void name_all() {
  name(&page_counts, sizeof page_counts, "page counts");
  name(&process_caches.depot.held, sizeof process_caches.depot.held, "depot's sum");
  name(&process_fields.index, sizeof process_fields.index, "index of fields");
  for (auto& entry : process_caches.of_cpu) {
    CpuCache* cache = entry.load(order::acquire);
    if (cache == nullptr) continue;
    name(&cache->section, sizeof cache->section, "section");
    name(&cache->busy, sizeof cache->busy, "section busy");
  }
  for (Field* f = process_fields.first.load(order::acquire); f != nullptr; f = f->next.load(order::acquire)) {
    name(f, Field::bytes_for(f->granules), "fields");
  }
  for (unsigned i = 1; i < kBins; ++i) {
    for (unsigned s = 0; s < kShardsMost; ++s)
      name(&process_caches.depot.bins[s][i], sizeof process_caches.depot.bins[s][i], "depot", i, s);
    for (HintBlock* block = process_store.bins[i].blocks.load(order::acquire); block != nullptr; block = block->next) {
      name(block, sizeof *block, "hints", i);
    }
    visit_chunks(process_store, bin_id(i), [&](Descriptor& d) {
      name(&d, Descriptor::bytes_for(d.bin), "occupancy", i, 0, &d);
      return true;
    });
  }
}

const char* kind_in(Descriptor& d, uintptr_t address) {
  const auto word = static_cast<unsigned>((address - reinterpret_cast<uintptr_t>(d.words())) / sizeof(Word));
  const unsigned hints = 3 * d.hint_words();
  if (word < hints) return "hints";
  return word < hints + 3 * kPageWords ? "residency" : "occupancy";
}

Range at(uintptr_t address) {
  for (unsigned i = 0; i < range_count; ++i) {
    Range range = ranges[i];
    if (address - range.start >= range.bytes) continue;
    if (range.descriptor != nullptr) range.kind = kind_in(*range.descriptor, address);
    return range;
  }
  return {0, 0, "-", 0, 0, nullptr};
}

extern "C" const char __ehdr_start;  // where the library lies

// One line a word: kind, bin, shard, address of the line, offset in the library, counts.
[[gnu::destructor]] void write_counts() {
  const char* path = getenv("FOLIO_COUNT_FILE");
  if (path == nullptr) return;
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) {
    dprintf(STDERR_FILENO, "libfolio-count: cannot write %s\n", path);
    return;
  }
  name_all();
  for (const Line& line : lines) {
    for (unsigned i = 0; i < kWords; ++i) {
      const WordCounts& w = line.words[i];
      if (w.took + w.gave + w.failed == 0) continue;
      const uintptr_t address = line.address + i * sizeof(uint64_t);
      const Range range = at(address);
      const uintptr_t offset = address - reinterpret_cast<uintptr_t>(&__ehdr_start);
      dprintf(file, "%s\t%u\t%u\t%zx\t%zx\t%u\t%u\t%u\t%u\n", range.kind, range.bin, range.shard, line.address, offset,
              w.took, w.gave, w.failed, w.passed);
    }
  }
  dprintf(file, "lost\t0\t0\t0\t0\t%zu\t0\t0\t0\n", static_cast<size_t>(lost));
  close(file);
}

}  // namespace

extern "C" void folio_count_rmw(const void* word, bool gives, bool done) {
  const auto address = reinterpret_cast<uintptr_t>(word);
  Line* line = line_of(address & ~uintptr_t{63});
  if (line == nullptr) {
    __atomic_fetch_add(&lost, 1, __ATOMIC_RELAXED);
    return;
  }
  WordCounts& counts = line->words[address / sizeof(uint64_t) % kWords];
  add(!done ? counts.failed : gives ? counts.gave : counts.took);
  const uint32_t self = number();
  if (done && __atomic_exchange_n(&line->last, self, __ATOMIC_RELAXED) != self) add(counts.passed);
}

// os::cpu(), by the linker's --wrap.
extern "C" unsigned folio_counted_cpu() __asm__("__wrap__ZN5folio2os3cpuEv");
extern "C" unsigned folio_counted_cpu() { return number() - 1; }
