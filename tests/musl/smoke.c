/* Folio under another libc: that malloc is Folio's, that contents survive, threads and their ends, realloc, aligned
 * memory, and fork from a process with threads. musl brings no GoogleTest. */
#include <errno.h>
#include <folio/folio.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

enum { kObjects = 20000, kThreads = 8, kMostBytes = 3 << 20 };

static uint64_t random_state(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* Mostly small, sometimes large, rarely huge. */
static size_t random_size(uint64_t *state) {
  const uint64_t kind = random_state(state) % 1000;
  return 1 + random_state(state) % (kind == 0 ? kMostBytes : kind < 20 ? 200000 : 2000);
}

struct held {
  unsigned char *bytes;
  size_t size;
};

static void fill(struct held held, int sign) { memset(held.bytes, sign, held.size); }

static void check_filled(struct held held, int sign) {
  CHECK(held.bytes[0] == sign && held.bytes[held.size / 2] == sign && held.bytes[held.size - 1] == sign);
}

/* Random lifetimes, each object signed with its slot. */
static void churn(uint64_t seed) {
  struct held slots[64] = {{0}};
  for (int i = 0; i < kObjects; ++i) {
    const int slot = (int)(random_state(&seed) % 64);
    struct held *held = &slots[slot];
    if (held->bytes != NULL) check_filled(*held, slot);
    if (held->bytes != NULL && random_state(&seed) % 4 != 0) {
      free(held->bytes);
      held->bytes = NULL;
      continue;
    }
    const size_t size = random_size(&seed), kept = held->bytes == NULL || held->size > size ? 0 : held->size;
    held->bytes = realloc(held->bytes, size);
    CHECK(held->bytes != NULL && folio_is_ours(held->bytes) && folio_usable_size(held->bytes) >= size);
    if (kept != 0) check_filled((struct held){held->bytes, kept}, slot);
    held->size = size;
    fill(*held, slot);
  }
  for (int slot = 0; slot < 64; ++slot) free(slots[slot].bytes);
}

static void *thread_main(void *argument) {
  churn((uintptr_t)argument);
  return malloc(100); /* freed by the thread that joins this one */
}

static void run_threads(uint64_t seed) {
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    CHECK(pthread_create(&threads[i], NULL, thread_main, (void *)(uintptr_t)(seed + (uint64_t)i)) == 0);
  }
  for (int i = 0; i < kThreads; ++i) {
    void *object;
    CHECK(pthread_join(threads[i], &object) == 0 && object != NULL);
    free(object);
  }
}

static void *allocate_until_reported(void *stop) {
  for (uint64_t seed = 1; !__atomic_load_n((int *)stop, __ATOMIC_RELAXED); ++seed) free(malloc(random_size(&seed)));
  return NULL;
}

/* Children of a process whose other threads allocate must be able to allocate, in threads of their own too. */
static void test_fork(void) {
  int stop = 0;
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) CHECK(pthread_create(&threads[i], NULL, allocate_until_reported, &stop) == 0);
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      churn((uint64_t)i);
      run_threads((uint64_t)i);
      _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < 2; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void test_family(void) {
  void *object = NULL;
  CHECK(posix_memalign(&object, 4096, 100) == 0 && (uintptr_t)object % 4096 == 0);
  free(object);
  object = aligned_alloc(1 << 21, 5000);
  CHECK(object != NULL && (uintptr_t)object % (1 << 21) == 0);
  free(object);
  unsigned char *zeros = calloc(1000, 1000);
  CHECK(zeros != NULL && zeros[0] == 0 && memcmp(zeros, zeros + 1, 999999) == 0);
  free(zeros);
  errno = 0;
  CHECK(calloc(SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
  char *text = strdup("the libc's own calls come here too");
  CHECK(text != NULL && folio_is_ours(text));
  free(text);
}

int main(void) {
  test_family();
  churn(1);
  run_threads(100);
  test_fork();
  CHECK(folio_collect() > 0);
  puts("ok");
  return 0;
}
