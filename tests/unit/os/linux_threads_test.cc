// What the threads of os.h have on Linux beyond the contract: CPUs and scheduling class, by pthread functions.
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "os/os.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

cpu_set_t cpus_here() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  EXPECT_EQ(sched_getaffinity(0, sizeof cpus, &cpus), 0);
  return cpus;
}

std::atomic<unsigned> seen_class{0};
cpu_set_t seen_cpus;

// By a thread that is bound to one CPU and, where it may, of another class.
void start_from_a_bound_thread() {
  seen_class = 0;
  std::thread([] {
    cpu_set_t one = cpus_here();
    for (int cpu = 0, left = CPU_COUNT(&one); left > 1; ++cpu) {
      if (!CPU_ISSET(cpu, &one)) continue;
      CPU_CLR(cpu, &one);
      --left;
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const sched_param idle{};
    ASSERT_EQ(sched_setscheduler(0, SCHED_BATCH, &idle), 0);
    ASSERT_TRUE(os::start_thread(
        [](void*) {
          seen_cpus = cpus_here();
          seen_class = 1 + static_cast<unsigned>(sched_getscheduler(0));
        },
        nullptr));
  }).join();
  while (seen_class == 0) sleep_ms(1);
}

TEST(LinuxThreads, StartThreadHasTheCpusAndTheClassOfTheProcess) {
  const cpu_set_t all = cpus_here();
  os::remember_cpus();
  start_from_a_bound_thread();
  EXPECT_EQ(seen_class, 1u + SCHED_OTHER);
  EXPECT_TRUE(CPU_EQUAL(&seen_cpus, &all));
}

// What cannot be given with it, it takes itself.
TEST(LinuxThreads, StartThreadTakesWhatItsMakerCannotGive) {
  const cpu_set_t all = cpus_here();
  os::remember_cpus();
  create_threads_by([](pthread_t* thread, const pthread_attr_t* attributes, void* (*main)(void*), void* argument) {
    int inherits = 0;
    cpu_set_t cpus;
    if (pthread_attr_getinheritsched(attributes, &inherits) == 0 && inherits == PTHREAD_EXPLICIT_SCHED) return EPERM;
    if (pthread_attr_getaffinity_np(attributes, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) == CPU_COUNT(&seen_cpus) &&
        CPU_COUNT(&cpus) < CPU_SETSIZE) {
      return EINVAL;
    }
    return pthread_create(thread, attributes, main, argument);
  });
  start_from_a_bound_thread();
  create_threads_by(pthread_create);
  EXPECT_EQ(seen_class, 1u + SCHED_OTHER);
  EXPECT_TRUE(CPU_EQUAL(&seen_cpus, &all));
}

}  // namespace
