// tight_loop: malloc and free of one size, nothing else.
//
// Source: `while (1) free(malloc(8))`, the loop on which the SuperMalloc slides (ISMM 2015) show why thread caches are
// fast. It says nothing about a real program; it measures the length of the fastest path, and with batch=N the path
// that takes N objects from a cache and puts them back.
//
// With ideal=1 it measures no malloc at all but the limit for one: the same loops on a stack of pointers of the thread,
// which has no size, no bins and no bound. Its push and pop are called through pointers, as malloc and free are.
//
// For callgrind: with quiet=1 it prints nothing. The calls to malloc and free are the only ones in `measured_loop`, so
// bench/instructions.py can subtract the loop exactly.

#include "bench.h"

namespace {

using bench::Param;

Param pairs{"pairs", 100000000, "malloc and free pairs"};
Param size{"size", 64, "bytes an object"};
Param batch{"batch", 1, "objects allocated before they are freed (at most 1024)"};
Param ideal{"ideal", 0, "1: a stack of pointers in place of malloc and free"};
Param quiet{"quiet", 0, "1: print nothing"};

constexpr size_t kMaxBatch = 1024;

}  // namespace

// The barriers keep the compiler from proving that a pair has no effect. They emit no instruction.
extern "C" [[gnu::noinline, gnu::used]] void measured_loop(size_t bytes, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    void *object = malloc(bytes);
    asm volatile("" : "+r"(object));
    free(object);
  }
}

static void batched_loop(size_t bytes, uint64_t count, size_t batch_size) {
  void *objects[kMaxBatch];
  for (uint64_t done = 0; done < count; done += batch_size) {
    for (size_t i = 0; i < batch_size; ++i) {
      objects[i] = malloc(bytes);
      asm volatile("" : "+r"(objects[i]));
    }
    for (size_t i = 0; i < batch_size; ++i) free(objects[i]);
  }
}

namespace {

thread_local void *ideal_stack[kMaxBatch];
thread_local void **ideal_cursor;

[[gnu::noinline]] void *ideal_malloc(size_t) { return *--ideal_cursor; }
[[gnu::noinline]] void ideal_free(void *object) { *ideal_cursor++ = object; }

// The pointers are read through a volatile, so that the compiler knows neither function.
void *(*volatile malloc_pointer)(size_t) = ideal_malloc;
void (*volatile free_pointer)(void *) = ideal_free;

// The two loops as above; the objects are some addresses.
void ideal_loop(size_t bytes, uint64_t count, size_t batch_size) {
  static char memory[kMaxBatch];
  ideal_cursor = ideal_stack;
  for (char &byte : memory) ideal_free(&byte);
  void *(*const pop)(size_t) = malloc_pointer;
  void (*const push)(void *) = free_pointer;
  void *objects[kMaxBatch];
  if (batch_size == 1) {
    for (uint64_t i = 0; i < count; ++i) {
      void *object = pop(bytes);
      asm volatile("" : "+r"(object));
      push(object);
    }
  }
  for (uint64_t done = 0; done < count && batch_size != 1; done += batch_size) {
    for (size_t i = 0; i < batch_size; ++i) {
      objects[i] = pop(bytes);
      asm volatile("" : "+r"(objects[i]));
    }
    for (size_t i = 0; i < batch_size; ++i) push(objects[i]);
  }
  uintptr_t sum = 0;
  for (size_t i = 0; i < kMaxBatch; ++i) sum += reinterpret_cast<uintptr_t>(pop(bytes));
  for (char &byte : memory) sum -= reinterpret_cast<uintptr_t>(&byte);
  if (sum != 0) bench::die("the stack lost a pointer");
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&pairs, &size, &batch, &ideal, &quiet});
  if (batch == 0 || batch > kMaxBatch) bench::die("%s: batch is 1 to %zu", argv[0], kMaxBatch);
  const uint64_t begin = bench::now_ns();
  if (ideal != 0) {
    ideal_loop(size, pairs, batch);
  } else if (batch == 1) {
    measured_loop(size, pairs);
  } else {
    batched_loop(size, pairs, batch);
  }
  const double seconds = bench::seconds_since(begin);
  if (quiet != 0) return 0;
  bench::Json("tight_loop")
      .speed(seconds, pairs)
      .number("ns_per_pair", seconds * 1e9 / static_cast<double>(pairs))
      .param(size)
      .param(batch)
      .param(ideal)
      .print();
}
