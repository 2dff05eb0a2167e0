// larson: a server whose threads inherit the objects of the threads before them.
//
// Source: Larson and Krishnan, "Memory allocation for long-running server applications", ISMM 1998; parameters in the
// order of the program that Hoard distributes and that Kuszmaul, "SuperMalloc", ISMM 2015, section 9, runs:
//
//   larson SECONDS MIN MAX CHUNKS ROUNDS SEED THREADS     for example  larson 10 7 500 1000 10000 1 8
//
// Each thread owns CHUNKS objects of MIN to MAX bytes, laid out beforehand by the main thread in random order, and
// replaces one at random, CHUNKS * ROUNDS times. Then it starts a successor, which inherits the objects, and ends. So a
// thread frees what earlier, ended threads allocated. After SECONDS all stop.
//
// Stresses: frees of objects of other threads, ended ones; thread start and end; stays at a constant live size.

#include <atomic>

#include "bench.h"

namespace {

using bench::Param;

Param seconds{"seconds", 2, "how long it runs"};
Param min_size{"min", 7, "smallest size"};
Param max_size{"max", 500, "largest size"};
Param chunks{"chunks", 1000, "objects a thread"};
Param rounds{"rounds", 10000, "times `chunks` replacements before a thread hands over"};
Param seed{"seed", 1, "of the sizes and victims"};
Param threads{"threads", 8, "threads at a time"};

std::atomic<bool> stop{false};
std::atomic<unsigned> running{0};

// One server thread's place, which its successors take over. Own cache lines: places must not disturb each other.
struct alignas(128) Place {
  void **objects;
  bench::Random random{0};
  uint64_t replacements;
  uint64_t generations;
};

void replace_one(Place *place, size_t victim) {
  free(place->objects[victim]);
  const size_t size = place->random.between(min_size, max_size);
  char *object = static_cast<char *>(bench::must_malloc(size));
  bench::touch_ends(object, size);
  place->objects[victim] = object;
}

void *serve(void *argument);

void start_thread(Place *place) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t id;
  const int error = pthread_create(&id, &attributes, serve, place);
  if (error != 0) bench::die("cannot start a thread: %s", strerror(error));
  pthread_attr_destroy(&attributes);
}

void *serve(void *argument) {
  Place *place = static_cast<Place *>(argument);
  const uint64_t quota = chunks * rounds;
  uint64_t done = 0;
  while (done < quota && !stop.load(std::memory_order_relaxed)) {
    replace_one(place, place->random.below(chunks));
    ++done;
  }
  place->replacements += done;
  ++place->generations;
  if (stop.load(std::memory_order_relaxed)) {
    running.fetch_sub(1, std::memory_order_release);
  } else {
    start_thread(place);
  }
  return nullptr;
}

// Objects in random order of address, as a server that has run for a while holds them.
void warm_up(Place *place) {
  for (size_t i = 0; i < chunks; ++i) replace_one(place, i);
  bench::shuffle(place->objects, chunks, &place->random);
  for (size_t i = 0; i < 4 * chunks; ++i) replace_one(place, place->random.below(chunks));
}

// The original's seven numbers, or name=value as in the other programs.
void parse_arguments(int argc, char **argv) {
  Param *const positions[] = {&seconds, &min_size, &max_size, &chunks, &rounds, &seed, &threads};
  if (argc > 1 && argv[1][0] >= '0' && argv[1][0] <= '9') {
    if (argc > 8) bench::die("%s: seven numbers at most: seconds min max chunks rounds seed threads", argv[0]);
    for (int i = 1; i < argc; ++i) {
      if (!bench::parse_value(argv[i], &positions[i - 1]->value))
        bench::die("%s: \"%s\" is no value for %s", argv[0], argv[i], positions[i - 1]->name);
    }
  } else {
    bench::parse(argc, argv, {&seconds, &min_size, &max_size, &chunks, &rounds, &seed, &threads});
  }
  if (min_size == 0 || min_size > max_size || chunks == 0 || rounds == 0 || threads == 0)
    bench::die("%s: sizes, chunks, rounds and threads must be at least 1, and min at most max", argv[0]);
}

}  // namespace

int main(int argc, char **argv) {
  parse_arguments(argc, argv);
  Place *places = bench::map_array<Place>(threads);
  void **objects = bench::map_array<void *>(chunks * threads);
  for (size_t i = 0; i < threads; ++i) {
    places[i].objects = objects + i * chunks;
    places[i].random = bench::Random(seed * 1000 + i);
    warm_up(&places[i]);
  }
  running = static_cast<unsigned>(threads);
  const uint64_t begin = bench::now_ns();
  for (size_t i = 0; i < threads; ++i) start_thread(&places[i]);
  bench::sleep_ms(seconds * 1000);
  stop = true;
  while (running.load(std::memory_order_acquire) != 0) bench::sleep_ms(1);
  const double elapsed = bench::seconds_since(begin);
  uint64_t replacements = 0, generations = 0;
  for (size_t i = 0; i < threads; ++i) {
    replacements += places[i].replacements;
    generations += places[i].generations;
  }
  bench::Json("larson")
      .speed(elapsed, replacements)
      .param(threads)
      .param(min_size)
      .param(max_size)
      .param(chunks)
      .param(rounds)
      .count("threads_started", generations)
      .print();
}
