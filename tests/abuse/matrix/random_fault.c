/* A right random workload with one fault somewhere: random_fault SEED. check_matrix.py runs many. A stale pointer whose
 * memory was handed out again is never used: nobody could tell that. */
#include "survey.h"

#include <pthread.h>

enum { kLiveMost = 500, kStaleMost = 200 };

static uint64_t state;
static uint64_t next(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state * 0x2545F4914F6CDD1Du >> 11;
}
static uint64_t below(uint64_t n) { return next() % n; }

static size_t random_size(void) {
  const unsigned kind = (unsigned)below(100);
  if (kind < 60) return 1 + below(256);
  if (kind < 85) return 1 + below(2048);
  if (kind < 97) return 1 + below(30000);
  return 1 + below(300000);
}

static struct owned stale[kStaleMost]; /* freed, and not handed out again since */
static unsigned stale_count;

static void forget_stale(const unsigned char *start, size_t length) {
  for (unsigned i = 0; i < stale_count;) {
    if (stale[i].start < start + length && start < stale[i].start + stale[i].size) {
      stale[i] = stale[--stale_count];
    } else {
      i++;
    }
  }
}

static void free_owned(unsigned number) {
  const struct owned o = owned[number];
  disown(number);
  if (stale_count == kStaleMost) stale[below(kStaleMost)] = stale[--stale_count];
  stale[stale_count++] = o;
  free(o.start);
}

static void step(void) {
  const unsigned live = owned_count;
  if (live < kLiveMost && (live == 0 || below(100) < 52)) {
    const size_t size = random_size();
    void *start = malloc(size);
    own(start, size);
    forget_stale((unsigned char *)start, folio_usable_size(start));
  } else {
    free_owned((unsigned)below(live));
  }
}

static void *free_it(void *address) {
  free(opaque(address));
  return NULL;
}

static void fault(void) {
  const unsigned kind = (unsigned)below(3);
  while (owned_count < 2 || stale_count == 0) step();
  if (kind == 0) {
    /* The object that was freed so many frees ago, or the oldest. */
    const unsigned back = (unsigned)below(below(2) ? 8 : kStaleMost);
    free_it(stale[back < stale_count ? stale_count - 1 - back : 0].start);
  } else if (kind == 1) {
    const struct owned *o = &owned[below(owned_count)];
    if (o->size < 2) return fault();
    free_it(o->start + 1 + (below(2) ? below(o->size - 1) : (8 * below(o->size) + 7) % (o->size - 1)));
  } else {
    pthread_t thread;
    void *const address = stale[below(stale_count)].start;
    require(pthread_create(&thread, NULL, free_it, address) == 0 && pthread_join(thread, NULL) == 0, "thread");
  }
}

int main(int argc, char **argv) {
  require(argc == 2, "one argument");
  state = strtoul(argv[1], NULL, 10) * 0x9E3779B97F4A7C15u + 1;
  for (int i = 0; i < 10; i++) next();
  const unsigned steps = 100u << below(10); /* 100 to 51200 */
  const unsigned at = (unsigned)below(steps);
  for (unsigned i = 0; i < steps; i++) {
    if (i == at) fault();
    step();
    if (i % 64 == 0 && i < at + 2000) check_owned();
  }
  survey(64);
  return kClean;
}
