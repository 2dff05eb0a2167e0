// big_heap: does a call cost the same in a heap of 100 GiB as in one of 1 GiB?
//
// Source: Folio's own. An allocator that looks through all it has, at whatever call, is quick in every benchmark of
// some hundred MiB, and slow in the servers that people change allocators for. So the objects are not touched: the heap
// is address space, and a machine of 8 GiB can hold 100 of them.
//
// Stresses: the search for room, and for what may be purged, over very many chunks or extents.
//
// Phases, each timed by the call: grow to the heap's size; free half in random order; allocate that half again; replace
// objects at random; free every other one, and allocate aligned to 64 KiB and 2 MiB between them; free all. The longest
// call of each phase that was not preempted is reported too, since a walk now and then hides in a mean.

#include "bench.h"
#include "call_times.h"
#include "marks.h"

namespace {

using bench::Param;

Param size{"size", 100 << 10, "bytes an object"};
Param heap{"heap", uint64_t{1} << 30, "bytes that live at most"};
Param replaced{"replaced", 200000, "objects that are replaced"};
Param aligned{"aligned", 4000, "aligned objects, half as large"};
Param show{"show", 0, "1: print the phases"};
Param seed{"seed", 1, "of the order"};

class Phase {
 public:
  explicit Phase(const char *name) : name_(name) {}

  template <class Call>
  void time(uint64_t i, Call &&call) {
    disturbance_.poll(i);
    const uint64_t before = bench::now_ns();
    call();
    times_->record(bench::now_ns() - before, &disturbance_);
  }

  void report(bench::Json *json, uint64_t clock_ns) const {
    const double mean = times_->mean() - static_cast<double>(clock_ns);
    const double longest = static_cast<double>(times_->max_undisturbed());
    char field[64];
    snprintf(field, sizeof(field), "%s_ns", name_);
    json->number(field, mean);
    snprintf(field, sizeof(field), "%s_longest_ns", name_);
    json->number(field, longest);
    if (show != 0) {
      printf("  %-18s %9.0f ns  longest %9.1f us  %9llu calls\n", name_, mean, longest * 1e-3,
             static_cast<unsigned long long>(times_->count()));
    }
  }

 private:
  const char *name_;
  bench::Disturbance disturbance_;
  bench::CallTimes *times_ = bench::map_array<bench::CallTimes>(1);  // too large for a stack
};

// What it costs to look at the clock twice.
uint64_t clock_cost() {
  constexpr unsigned kReads = 100000;
  const uint64_t before = bench::now_ns();
  for (unsigned i = 1; i < kReads; ++i) bench::now_ns();
  return (bench::now_ns() - before) / kReads;
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&size, &heap, &replaced, &aligned, &show, &seed});
  if (size == 0 || heap / size < 4) bench::die("%s: the heap must hold four objects at least", argv[0]);
  const size_t count = heap / size;
  void **objects = bench::map_array<void *>(count);
  uint32_t *order = bench::map_array<uint32_t>(count);
  bench::Random random(seed);
  for (size_t i = 0; i < count; ++i) order[i] = static_cast<uint32_t>(i);
  bench::shuffle(order, count, &random);
  Phase grow("grow"), free_half("free_half"), refill("refill"), replace_free("replace_free"),
      replace_malloc("replace_malloc"), align_64k("aligned_64k"), align_2m("aligned_2m"), free_all("free_all");
  const uint64_t clock_ns = clock_cost(), begin = bench::now_ns();
  const auto fill = [&](Phase *phase, size_t i, size_t at) {
    phase->time(i, [&] { objects[at] = bench::must_malloc(size); });
  };
  const auto drop = [&](Phase *phase, size_t i, size_t at) {
    phase->time(i, [&] { free(objects[at]); });
    objects[at] = nullptr;
  };
  for (size_t i = 0; i < count; ++i) fill(&grow, i, i);
  for (size_t i = 0; i < count / 2; ++i) drop(&free_half, i, order[i]);
  for (size_t i = 0; i < count / 2; ++i) fill(&refill, i, order[i]);
  for (size_t i = 0; i < replaced; ++i) {
    const size_t at = random.below(count);
    drop(&replace_free, i, at);
    fill(&replace_malloc, i, at);
  }
  for (size_t i = 0; i < count; i += 2) drop(&free_half, i, i);
  for (size_t i = 0; i < aligned && 2 * i < count; ++i) {
    const bool wide = i % 2 != 0;
    (wide ? align_2m : align_64k).time(i, [&] {
      if (posix_memalign(&objects[2 * i], wide ? 2 << 20 : 64 << 10, size / 2) != 0) bench::die("out of memory");
    });
  }
  for (size_t i = 0; i < count; ++i) {
    if (objects[order[i]] != nullptr) drop(&free_all, i, order[i]);
  }
  bench::Json json("big_heap");
  json.number("seconds", bench::seconds_since(begin)).param(size).param(heap);
  for (const Phase *phase :
       {&grow, &free_half, &refill, &replace_free, &replace_malloc, &align_64k, &align_2m, &free_all}) {
    phase->report(&json, clock_ns);
  }
  json.print();
}
