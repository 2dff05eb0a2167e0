/* Programs in whose life the housekeeper could get in the way, or be missing: one a mode, each a process of its own.
 * This one wraps pthread_create, as profilers and tracers do, under a lock under which it allocates. Ends with 0, with
 * 77 where the system lacks what it needs, or with the line of the check that failed; a mode that hangs is ended by the
 * test's time. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kSkip = 77, kObjects = 3000, kPolls = 2000 };

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "%s:%d: %s, errno %d\n", __FILE__, __LINE__, #condition, errno); \
      _exit(1);                                                                        \
    }                                                                                  \
  } while (0)

/* ---- What the modes do ---- */

/* More than a housekeeper is worth, in objects of `size`; all of it is touched and freed. */
static void burst(size_t size) {
  static _Thread_local char *objects[kObjects];
  for (int i = 0; i < kObjects; i++) {
    objects[i] = (char *)malloc(size);
    CHECK(objects[i] != NULL);
    memset(objects[i], 1, size);
  }
  for (int i = 0; i < kObjects; i++) free(objects[i]);
}

static void *burst_in_thread(void *size) {
  burst((size_t)(uintptr_t)size);
  return NULL;
}

static void *pause_in_thread(void *unused) {
  (void)unused;
  free(malloc(100));
  for (;;) pause();
  return NULL;
}

static void start(pthread_t *thread, void *(*main)(void *), void *argument) {
  CHECK(pthread_create(thread, NULL, main, argument) == 0);
}

/* The ids of all threads but the caller's; returns how many. */
static int other_threads(pid_t *ids, int most) {
  DIR *directory = opendir("/proc/self/task");
  CHECK(directory != NULL);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    const pid_t id = (pid_t)atoi(entry->d_name);
    if (id != 0 && id != (pid_t)syscall(SYS_gettid) && count < most) ids[count++] = id;
  }
  closedir(directory);
  return count;
}

static int count_other_threads(void) {
  pid_t ids[64];
  return other_threads(ids, 64);
}

/* Soon: one that was joined is still counted for a moment. */
static int there_are_other_threads(int count) {
  for (int i = 0; i < kPolls && count_other_threads() != count; i++) usleep(5000);
  return count_other_threads() == count;
}

static long resident_mib(void) {
  long all = 0, resident = 0;
  FILE *statm = fopen("/proc/self/statm", "r");
  CHECK(statm != NULL && fscanf(statm, "%ld %ld", &all, &resident) == 2);
  fclose(statm);
  return resident * sysconf(_SC_PAGESIZE) >> 20;
}

static int ended_well(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

/* ---- pthread_create, wrapped ---- */

typedef int create_thread(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static char **names;
static size_t names_used, wrapped_calls;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument) {
  create_thread *next;
  void *const found = dlsym(RTLD_NEXT, "pthread_create");
  memcpy(&next, &found, sizeof next);
  pthread_mutex_lock(&names_lock);
  names = (char **)realloc(names, (names_used + 1) * sizeof *names);
  names[names_used++] = strdup("a thread");
  wrapped_calls++;
  burst(5000);
  const int error = next(thread, attributes, main, argument);
  pthread_mutex_unlock(&names_lock);
  return error;
}

/* The housekeeper starts, and neither a malloc under the lock nor it itself comes by the wrapper. */
static int wrapped(void) {
  pthread_t threads[3];
  for (int i = 0; i < 2; i++) start(&threads[i], pause_in_thread, NULL);
  for (int i = 0; i < 20; i++) burst(5000);
  CHECK(there_are_other_threads(3));
  start(&threads[2], burst_in_thread, (void *)(uintptr_t)5000);
  CHECK(pthread_join(threads[2], NULL) == 0);
  CHECK(wrapped_calls == 3 && there_are_other_threads(3));
  return 0;
}

/* ---- How it runs ---- */

static int inherits_nothing(void) {
  cpu_set_t before, one, its;
  CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
  struct sched_param most = {10}, none = {0};
  if (sched_setscheduler(0, SCHED_FIFO, &most) != 0) CHECK(sched_setscheduler(0, SCHED_BATCH, &none) == 0);
  pthread_t thread;
  start(&thread, pause_in_thread, NULL);
  pid_t ids[3];
  CHECK(other_threads(ids, 3) == 2);
  int ordinary = 0;
  for (int i = 0; i < 2; i++) {
    if (sched_getscheduler(ids[i]) != SCHED_OTHER) continue;
    ordinary++;
    CHECK(sched_getaffinity(ids[i], sizeof its, &its) == 0 && CPU_EQUAL(&its, &before));
  }
  CHECK(ordinary == 1);
  return 0;
}

/* ---- Its end ---- */

/* What demands a process of one thread works soon after the others were joined; and again in the next phase. */
static int alone_again(void) {
  const pid_t first = fork();
  if (first == 0) _exit(unshare(CLONE_NEWUSER) == 0 ? 0 : 1);
  if (!ended_well(first)) return kSkip;
  for (int phase = 0; phase < 3; phase++) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) start(&threads[i], burst_in_thread, (void *)(uintptr_t)5000);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    int left = 1;
    for (int i = 0; i < kPolls && (left = count_other_threads()) != 0; i++) usleep(5000);
    CHECK(left == 0);
  }
  CHECK(unshare(CLONE_NEWUSER) == 0);
  return 0;
}

static pthread_key_t late_key;
static _Thread_local int late_rounds;

static void allocate_in_the_last_round(void *value) {
  if (++late_rounds < PTHREAD_DESTRUCTOR_ITERATIONS) {
    pthread_setspecific(late_key, value);
  } else {
    burst(64);
  }
}

static void *end_unreported(void *raw) {
  if (raw != NULL) {
    burst(64);
    syscall(SYS_exit, 0);
  }
  pthread_setspecific(late_key, &late_key);
  return NULL;
}

/* The process ends when the program's threads have, also if nobody told the end of some. */
static void main_leaves(void *(*unreported)(void *), void *argument) {
  CHECK(pthread_key_create(&late_key, allocate_in_the_last_round) == 0);
  pthread_t threads[3];
  for (int i = 0; i < 2; i++) start(&threads[i], burst_in_thread, (void *)(uintptr_t)5000);
  if (unreported != NULL) start(&threads[2], unreported, argument);
  pthread_exit(NULL);
}

/* Has allocated nothing when main leaves, and for long after it: main, this thread and the housekeeper are there. */
static void *work_late(void *unused) {
  (void)unused;
  sleep(2);
  CHECK(count_other_threads() == 2);
  burst(5000);
  return NULL;
}

static void main_leaves_early(void) {
  pthread_t thread;
  start(&thread, work_late, NULL);
  burst(5000);
  pthread_exit(NULL);
}

/* ---- Copies of the process ---- */

static int child_gives_back(void) {
  enum { kMany = 100000 };
  char **objects = (char **)malloc(kMany * sizeof *objects);
  for (int i = 0; i < kMany; i++) {
    objects[i] = (char *)malloc(900);
    memset(objects[i], 1, 900);
  }
  for (int i = 0; i < kMany; i++) free(objects[i]);
  long left = LONG_MAX;
  for (int i = 0; i < kPolls && (left = resident_mib()) > 40; i++) {
    burst(64);
    usleep(5000);
  }
  return left <= 40 ? 0 : 1;
}

/* Made by the raw system call, past the handlers of fork: the child has no housekeeper, and takes none for alive. */
static int raw_copy(void) {
  pthread_t thread;
  start(&thread, pause_in_thread, NULL);
  for (int i = 0; i < 10; i++) burst(5000);
  const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) _exit(child_gives_back());
  CHECK(ended_well(child));
  return 0;
}

/* The child of vfork has the parent's memory: it must start nothing, and leave nothing that the parent takes for its
 * own. */
static pid_t vfork_that_allocates(void) {
  const pid_t child = vfork();
  if (child == 0) {
    burst(5000);
    _exit(0);
  }
  return child;
}

static void vfork_often(void) {
  const int others = count_other_threads();
  for (int i = 0; i < 20; i++) {
    CHECK(ended_well(vfork_that_allocates()));
    CHECK(count_other_threads() == others);
    burst(3000);
  }
}

static int vfork_child(void) {
  vfork_often();
  pthread_t thread;
  start(&thread, pause_in_thread, NULL);
  vfork_often();
  return 0;
}

/* ---- Filters that kill ---- */

/* docs/limits.md has this list. */
static const int ordinary_calls[] = {
    __NR_mmap,
    __NR_munmap,
    __NR_mprotect,
    __NR_madvise,
#ifdef __NR_process_madvise
    __NR_process_madvise,
#endif
    __NR_mremap,
    __NR_rt_sigprocmask,
    __NR_futex,
    __NR_getrusage,
    __NR_getpid,
    __NR_gettid,
    __NR_write,
    __NR_clock_gettime,
    __NR_getcpu,
    /* a thread's start, and the housekeeper's */
    __NR_clone,
    __NR_clone3,
    __NR_set_robust_list,
    __NR_rseq,
    __NR_exit,
    __NR_sched_getaffinity,
    __NR_sched_getscheduler,
    __NR_rt_sigaction,
    /* the housekeeper */
    __NR_newfstatat,
    __NR_readlinkat,
    /* the child of a fork */
    __NR_set_tid_address,
    /* the program's own */
    __NR_wait4,
    __NR_exit_group,
    __NR_clock_nanosleep,
    __NR_nanosleep,
    __NR_tgkill,
#ifdef __NR_pause
    __NR_pause,
#endif
};

static int filter_all_others(void) {
  enum { kCalls = sizeof ordinary_calls / sizeof *ordinary_calls };
  struct sock_filter code[2 * kCalls + 4];
  unsigned n = 0;
  code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < kCalls; i++) {
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)ordinary_calls[i], 0, 1);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  const struct sock_fprog program = {(unsigned short)n, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void all_kinds_of_calls(void) {
  for (size_t size = 16; size <= (size_t)64 << 20; size *= 4) {
    for (int i = 0; i < 2; i++) {
      char *object = (char *)calloc(1, size - 1);
      CHECK(object != NULL && object[size / 2] == 0);
      object[size - 2] = 1;
      object = (char *)realloc(object, size + size / 2);
      CHECK(object != NULL && object[size - 2] == 1);
      free(object);
      CHECK(posix_memalign((void **)&object, size < 4096 ? 64 : 4096, size) == 0);
      free(object);
    }
  }
  burst(1000);
  char *huge[4];
  for (int i = 0; i < 4; i++) memset(huge[i] = (char *)malloc((size_t)20 << 20), 1, (size_t)5 << 20);
  burst(10000);
  for (int i = 0; i < 4; i++) huge[i] = (char *)realloc(huge[i], (size_t)90 << 20);
  for (int i = 0; i < 4; i++) free(huge[i]);
}

static void *all_kinds_in_thread(void *unused) {
  all_kinds_of_calls();
  return unused;
}

static int filtered(void) {
  if (!filter_all_others()) return kSkip;
  all_kinds_of_calls();
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) start(&threads[i], all_kinds_in_thread, NULL);
  all_kinds_of_calls();
  usleep(300000); /* polls of the housekeeper */
  const pid_t child = fork();
  if (child == 0) {
    all_kinds_of_calls();
    _exit(0);
  }
  CHECK(ended_well(child));
  for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  usleep(300000); /* its end */
  all_kinds_of_calls();
  return 0;
}

/* Of what the housekeeper alone may call, in a thread of the program's: its end. */
static int forbid(int call) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog program = {sizeof code / sizeof *code, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void scattered_frees(void) {
  enum { kScattered = 40000 };
  static char *scattered[kScattered];
  for (int i = 0; i < kScattered; i++) memset(scattered[i] = (char *)malloc(1000), 1, 1000);
  for (int i = 0; i < kScattered; i++) {
    if (i % 16 != 0) free(scattered[i]);
  }
  malloc_trim(0);
  for (int i = 0; i < kScattered; i += 16) free(scattered[i]);
  malloc_trim(0);
}

static void *filtered_work(void *filters) {
  *(int *)filters = forbid(__NR_readlinkat);
#ifdef __NR_process_madvise
  *(int *)filters = *(int *)filters && forbid(__NR_process_madvise);
#endif
  if (!*(int *)filters) return NULL;
  for (int i = 0; i < 3; i++) scattered_frees();
  all_kinds_of_calls();
  return NULL;
}

/* A thread with a filter of its own, beside one that keeps the housekeeper at work. */
static int filtered_worker(void) {
  pthread_t idle, worker;
  int filters = 0;
  CHECK(pthread_create(&idle, NULL, pause_in_thread, NULL) == 0);
  CHECK(pthread_create(&worker, NULL, filtered_work, &filters) == 0);
  CHECK(pthread_join(worker, NULL) == 0);
  return filters ? 0 : kSkip;
}

int main(int count, char **arguments) {
  const char *const mode = count > 1 ? arguments[1] : "";
  free(malloc(10));
  if (strcmp(mode, "wrapped") == 0) return wrapped();
  if (strcmp(mode, "inherits_nothing") == 0) return inherits_nothing();
  if (strcmp(mode, "alone_again") == 0) return alone_again();
  if (strcmp(mode, "main_leaves") == 0) main_leaves(NULL, NULL);
  if (strcmp(mode, "main_leaves_late") == 0) main_leaves(end_unreported, NULL);
  if (strcmp(mode, "main_leaves_raw") == 0) main_leaves(end_unreported, &late_key);
  if (strcmp(mode, "main_leaves_early") == 0) main_leaves_early();
  if (strcmp(mode, "raw_copy") == 0) return raw_copy();
  if (strcmp(mode, "vfork_child") == 0) return vfork_child();
  if (strcmp(mode, "filtered") == 0) return filtered();
  if (strcmp(mode, "filtered_worker") == 0) return filtered_worker();
  fprintf(stderr, "no mode %s\n", mode);
  return 2;
}
