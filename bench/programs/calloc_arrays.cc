// calloc_arrays: large zeroed arrays of which little is used.
//
// Source: hash tables, sparse matrices and sieves, which ask calloc for megabytes and touch some pages of them. The
// papers measure malloc only.
//
// Stresses: whether calloc knows which memory is zero already. An allocator that clears fresh pages, or makes whole
// arrays resident to clear what was used before, pays for all pages; one that asks the kernel for zero pages pays for
// those that are touched.
//
// Each step replaces the array of a random slot. Each power of two is equally likely. One page in `sparse`, at random,
// is read (it must be zero from end to end) and written. Reported: time, and peak memory by the bytes that the program
// touched at most.

#include "bench.h"
#include "marks.h"

namespace {

using bench::Param;

Param ops{"ops", 1500, "arrays allocated in all"};
Param slots{"slots", 16, "live arrays"};
Param min_size{"min", 64u << 10, "smallest size (at least 4096)"};
Param max_size{"max", 32u << 20, "largest size (below 4 GiB)"};
Param sparse{"sparse", 16, "one page in so many is touched"};
Param seed{"seed", 1, "of everything random"};

constexpr size_t kPage = 4096;

struct Array {
  void *memory;
  uint64_t touched;
};

void must_be_zero(const char *bytes, size_t count) {
  uint64_t any = 0;
  for (size_t i = 0; i < count; i += sizeof(any)) {
    uint64_t word;
    memcpy(&word, bytes + i, sizeof(word));
    any |= word;
  }
  if (any != 0) bench::die("calloc's memory is not zero");
}

// Pages are counted from the array's start, which need not be a page's.
Array allocate(size_t size, bench::Random *random) {
  char *bytes = static_cast<char *>(calloc(size / sizeof(uint64_t), sizeof(uint64_t)));
  if (bytes == nullptr) bench::die("calloc of %zu bytes failed", size);
  const size_t pages = size / kPage;
  Array array{bytes, 0};
  // One page of each run of `sparse`: none is drawn twice, so all must be zero.
  for (size_t run = 0; run < pages; run += sparse) {
    const size_t page = run + random->below(sparse);
    if (page >= pages) continue;
    must_be_zero(bytes + page * kPage, kPage);
    memset(bytes + page * kPage, 'c', kPage);
    array.touched += kPage;
  }
  return array;
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&ops, &slots, &min_size, &max_size, &sparse, &seed});
  if (slots == 0 || sparse == 0 || min_size < kPage || min_size > max_size || max_size > UINT32_MAX)
    bench::die("%s: slots and sparse must be at least 1, min 4096, and min at most max, below 4 GiB", argv[0]);
  Array *arrays = bench::map_array<Array>(slots);
  bench::Random random(seed);
  bench::Peak live;
  uint64_t touched = 0;
  const uint64_t before = bench::rss_bytes();
  const uint64_t begin = bench::now_ns();
  for (uint64_t i = 0; i < ops; ++i) {
    Array *array = &arrays[random.below(slots)];
    free(array->memory);
    touched -= array->touched;
    *array = allocate(bench::log_uniform(&random, min_size, max_size), &random);
    touched += array->touched;
    live.note(touched);
  }
  for (size_t i = 0; i < slots; ++i) free(arrays[i].memory);
  const double seconds = bench::seconds_since(begin);
  bench::Json("calloc_arrays")
      .speed(seconds, ops)
      .param(slots)
      .param(sparse)
      .count("touched_peak_bytes", live.value)
      .number("peak_by_touched", bench::peak_by_live(before, live.value))
      .print();
}
