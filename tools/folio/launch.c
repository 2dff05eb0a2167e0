// launch REPORT LIBRARIES COMMAND [ARGUMENT...]
//
// Starts COMMAND with LD_PRELOAD=LIBRARIES ("-": none), waits, and writes one JSON line about it to the file REPORT:
// wall, user and system time, peak resident memory, page faults, exit status. Exits as COMMAND did.
//
// Why a program of its own: Linux counts into a child's ru_maxrss what its parent had resident when it started it, so a
// Python interpreter as the parent would report its own 10 to 20 MiB for every small program. This one is linked
// statically, where possible, and has less resident than any program that it starts.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static double seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec * 1e-6; }

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: launch REPORT LIBRARIES COMMAND [ARGUMENT...]\n");
    return 125;
  }
  FILE *report = fopen(argv[1], "we");
  if (report == NULL) {
    fprintf(stderr, "launch: %s: %s\n", argv[1], strerror(errno));
    return 125;
  }
  if (strcmp(argv[2], "-") == 0) {
    unsetenv("LD_PRELOAD");
  } else {
    setenv("LD_PRELOAD", argv[2], 1);
  }
  pid_t child;
  const double begin = now();
  const int error = posix_spawnp(&child, argv[3], NULL, NULL, argv + 3, environ);
  if (error != 0) {
    fprintf(stderr, "launch: %s: %s\n", argv[3], strerror(error));
    return 125;
  }
  int status;
  struct rusage usage;
  while (wait4(child, &status, 0, &usage) < 0) {
    if (errno != EINTR) {
      fprintf(stderr, "launch: wait4: %s\n", strerror(errno));
      return 125;
    }
  }
  const double wall = now() - begin;
  const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  fprintf(report,
          "{\"wall\": %.6f, \"user\": %.6f, \"sys\": %.6f, \"max_rss_kib\": %ld, \"minor_faults\": %ld, "
          "\"major_faults\": %ld, \"status\": %d}\n",
          wall, seconds(usage.ru_utime), seconds(usage.ru_stime), usage.ru_maxrss, usage.ru_minflt, usage.ru_majflt,
          code);
  if (fclose(report) != 0) return 125;
  return code;
}
