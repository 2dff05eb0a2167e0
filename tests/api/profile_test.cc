// The heap profile while a program does everything that profilers elsewhere stumble over: signals, threads that end,
// forks, libraries that come and go, an unwinder that allocates.
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support.h"

using namespace folio_test;

namespace {

// Of the header and the samples as docs/layout.md, "Samples", has them.
struct Profile {
  std::string bytes;
  uint64_t made() const { return word(48 + 4 * 8 + 24 * 8 + 8); }
  uint64_t word(size_t at) const {
    uint64_t value;
    memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }
  uint32_t half(size_t at) const {
    uint32_t value;
    memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }
  // Live ones.
  size_t live() const {
    constexpr unsigned kTables = 12;
    size_t found = 0;
    for (unsigned k = 0; k < kTables; k++) {
      const size_t at = word(48 + 4 * 8 + k * 8);
      if (at == 0) break;
      const size_t slots = size_t{half(36)} << k, sample_bytes = half(28);
      for (size_t slot = 0; slot < slots; slot++) found += (word(at + slot * sample_bytes) & 3) == 2 ? 1 : 0;
    }
    return found;
  }
};

Profile profile() {
  Profile p;
  folio_profile_write(
      [](void *to, const char *piece, size_t length) { static_cast<std::string *>(to)->append(piece, length); },
      &p.bytes);
  return p;
}

TEST(Profile, StartsAndStops) {
  EXPECT_FALSE(folio_profile_start(0));
  EXPECT_FALSE(folio_profile_start((size_t{1} << 40) + 1));
  ASSERT_TRUE(folio_profile_start(1));
  ASSERT_TRUE(folio_profile_start(1));  // again: the interval anew
  void *object = opaque(malloc(1000));
  EXPECT_GE(profile().live(), 1u);
  ASSERT_TRUE(folio_profile_stop());
  ASSERT_TRUE(folio_profile_stop());
  EXPECT_GE(profile().live(), 1u) << "samples stay while their objects live";
  free(object);
}

std::atomic<unsigned> ticks;

[[gnu::noinline]] void churn(unsigned seed, const std::atomic<bool> &stop, std::atomic<bool> &good) {
  std::vector<std::pair<unsigned char *, size_t>> live(64);
  unsigned random = seed * 2654435761u + 1;
  while (!stop) {
    random = random * 1664525u + 1013904223u;
    auto &[object, size] = live[random >> 26];
    if (object != nullptr && (object[0] != size % 251 || object[size - 1] != size % 251)) good = false;
    free(object);
    size = 1 + (random >> 8) % (random % 64 == 0 ? 100000 : 900);
    object = static_cast<unsigned char *>(opaque(malloc(size)));
    memset(object, static_cast<int>(size % 251), size);
  }
  for (auto &[object, size] : live) free(object);
}

// What the threads of EverythingAtOnce have done so far, each by one step over and over.
struct Done {
  std::atomic<bool> stop{false}, good{true};
  std::atomic<unsigned> loads{0}, children{0}, ended{0}, traces{0};

  bool all() const { return ticks > 100 && loads > 0 && children > 0 && ended > 0 && traces > 0; }
};

void load_libraries(Done &done) {
  void *const library = dlopen("libpthread.so.0", RTLD_NOW);
  void *const other = dlmopen(LM_ID_BASE, "libresolv.so.2", RTLD_NOW);
  if (library != nullptr) dlclose(library);
  if (other != nullptr && dlclose(other) == 0) done.loads++;
}

void end_a_thread(Done &done) {
  std::thread([&] {
    std::vector<std::string> strings(20, std::string(300, 'x'));
    done.ended += strings[7].size() == 300 ? 1 : 0;
  }).join();
}

void trace_back(Done &done) {
  void *frames[32];
  char **const names = backtrace_symbols(frames, backtrace(frames, 32));
  done.traces += names != nullptr ? 1 : 0;
  free(names);
}

void have_a_child(Done &done) {
  // A fork that is interrupted begins anew: of signals this fast it would never come to its end.
  sigset_t alarm, old;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm, &old);
  const pid_t child = fork();
  if (child != 0) pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (child == 0) {
    std::atomic<bool> now{false}, fine{true};
    std::thread late([&] { churn(9, now, fine); });
    usleep(2000);
    now = true;
    late.join();
    _exit(fine ? 0 : 1);
  }
  int status = -1;
  if (waitpid(child, &status, 0) != child || status != 0) done.good = false;
  done.children++;
}

TEST(Profile, EverythingAtOnce) {
  const char *const wanted = getenv("FOLIO_TEST_SECONDS");
  const unsigned seconds = wanted != nullptr ? static_cast<unsigned>(atoi(wanted)) : 4;
  struct sigaction action = {};
  action.sa_handler = [](int) { ticks.fetch_add(1, std::memory_order_relaxed); };
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
  const uint64_t before = profile().made();
  ASSERT_TRUE(folio_profile_start(4000));

  Done done;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; t++) threads.emplace_back([&, t] { churn(t, done.stop, done.good); });
  for (void (*const step)(Done &) : {load_libraries, end_a_thread, trace_back, have_a_child}) {
    threads.emplace_back([&done, step] {
      while (!done.stop) step(done);
    });
  }

  itimerval timer = {{0, 50}, {0, 50}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &timer, nullptr), 0);
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::steady_clock::now() - begin; };
  // Until all of it happened, too: on a busy machine that takes longer.
  const auto goes_on = [&] { return passed() < std::chrono::seconds(seconds) || !done.all(); };
  while (done.good && passed() < std::chrono::seconds(120) && goes_on()) usleep(50000);
  timer = {};
  ASSERT_EQ(setitimer(ITIMER_REAL, &timer, nullptr), 0);
  done.stop = true;
  for (std::thread &thread : threads) thread.join();
  ASSERT_TRUE(folio_profile_stop());
  EXPECT_TRUE(done.good);
  EXPECT_TRUE(done.all());
  const uint64_t samples = profile().made() - before;
  EXPECT_GT(samples, 100u);
  printf("%llu samples, %u signals, %u libraries, %u children, %u threads, %u traces\n",
         static_cast<unsigned long long>(samples), ticks.load(), done.loads.load(), done.children.load(),
         done.ended.load(), done.traces.load());
}

}  // namespace
