// realloc_growth: many vectors grow at the same time by realloc.
//
// Source: the way in which C programs read lines, build strings and collect results. Kuszmaul, "SuperMalloc", ISMM
// 2015, and the other papers measure no realloc.
//
// Stresses: growing in place, moving of what has grown, and the holes that outgrown blocks leave. Half of the vectors
// double when they are full; the others grow by a constant step of 64 elements, which is quadratic where each realloc
// copies. Both kinds exist in programs, and the second ones rely on a realloc that is good.
//
// Each step appends 16 elements to a random vector. At its final length, where each power of two is equally likely, a
// vector is checked, element by element, and freed, and begins anew. Reported: time, elements a second, how many
// reallocs moved their block, and peak memory by the bytes that the vectors held at most.

#include "bench.h"
#include "marks.h"

namespace {

using bench::Param;

Param elements{"elements", 60000000, "elements of 4 bytes appended in all"};
Param vectors{"vectors", 256, "vectors that grow at the same time"};
Param min_length{"min", 256, "smallest final length in elements"};
Param max_length{"max", 256u << 10, "largest final length in elements"};
Param step{"step", 64, "elements by which every second vector grows"};
Param seed{"seed", 1, "of the lengths and the order"};

constexpr size_t kAppend = 16;

struct Vector {
  uint32_t *data;
  size_t length, capacity, final_length;
  uint32_t first;  // elements are first, first + 1, ...
};

struct Counts {
  uint64_t reallocs = 0, moves = 0, bytes = 0;
  bench::Peak live;
};

void grow(Vector *v, bool doubles, Counts *counts) {
  const size_t capacity = doubles && v->capacity != 0 ? 2 * v->capacity : v->capacity + step;
  uint32_t *data = static_cast<uint32_t *>(realloc(v->data, capacity * sizeof(uint32_t)));
  if (data == nullptr) bench::die("realloc to %zu bytes failed", capacity * sizeof(uint32_t));
  ++counts->reallocs;
  counts->moves += data != v->data;
  counts->bytes += (capacity - v->capacity) * sizeof(uint32_t);
  counts->live.note(counts->bytes);
  v->data = data;
  v->capacity = capacity;
  // What was first and what was last are still there; all else is checked at the end.
  if (v->length != 0 && (data[0] != v->first || data[v->length - 1] != v->first + v->length - 1))
    bench::die("realloc lost an element");
}

void check_and_free(Vector *v, Counts *counts) {
  uint32_t wrong = 0;
  for (size_t i = 0; i < v->length; ++i) wrong |= v->data[i] ^ (v->first + static_cast<uint32_t>(i));
  if (wrong != 0) bench::die("realloc lost an element");
  free(v->data);
  counts->bytes -= v->capacity * sizeof(uint32_t);
  *v = {};
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&elements, &vectors, &min_length, &max_length, &step, &seed});
  if (vectors == 0 || min_length == 0 || min_length > max_length || step < kAppend)
    bench::die("%s: vectors and min must be at least 1, step at least %zu, and min at most max", argv[0], kAppend);
  Vector *all = bench::map_array<Vector>(vectors);
  bench::Random random(seed);
  Counts counts;
  const uint64_t before = bench::rss_bytes();
  const uint64_t begin = bench::now_ns();
  for (uint64_t done = 0; done < elements; done += kAppend) {
    const size_t index = random.below(vectors);
    Vector *v = &all[index];
    if (v->length >= v->final_length) {
      if (v->data != nullptr) check_and_free(v, &counts);
      v->final_length = bench::log_uniform(&random, min_length, max_length);
      v->first = static_cast<uint32_t>(random.next());
    }
    if (v->length + kAppend > v->capacity) grow(v, index % 2 == 0, &counts);
    for (size_t i = 0; i < kAppend; ++i, ++v->length) v->data[v->length] = v->first + static_cast<uint32_t>(v->length);
  }
  for (size_t i = 0; i < vectors; ++i) {
    if (all[i].data != nullptr) check_and_free(&all[i], &counts);
  }
  const double seconds = bench::seconds_since(begin);
  if (counts.bytes != 0) bench::die("the vectors are gone, but not their bytes");
  bench::Json("realloc_growth")
      .speed(seconds, elements)
      .param(vectors)
      .param(step)
      .count("reallocs", counts.reallocs)
      .number("moved_percent", 100 * static_cast<double>(counts.moves) / static_cast<double>(counts.reallocs))
      .count("live_peak_bytes", counts.live.value)
      .number("peak_by_live", bench::peak_by_live(before, counts.live.value))
      .print();
}
