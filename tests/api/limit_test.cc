// Limits as a program meets them: failures that it can unwind from, what the kernel counts, and functions that are
// called.
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "support.h"

using namespace folio_test;

namespace {

folio_limit limit_now() {
  folio_limit limit{};
  limit.struct_size = sizeof limit;
  EXPECT_TRUE(folio_limit_get(&limit));
  return limit;
}

// Runs body() in a fork of this process; what it returns, or -1 if it died.
template <class Body>
int in_child(Body body) {
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A figure of /proc/self/status, in bytes.
size_t status(const char *name) {
  FILE *const file = fopen("/proc/self/status", "r");
  char line[256];
  size_t kib = 0;
  while (fgets(line, sizeof line, file) != nullptr) {
    if (strncmp(line, name, strlen(name)) == 0) kib = strtoul(line + strlen(name) + 1, nullptr, 10);
  }
  fclose(file);
  return kib << 10;
}

TEST(Limit, SetAndGet) {
  folio_limit limit = limit_now();
  EXPECT_EQ(limit.soft, 0u);
  EXPECT_EQ(limit.hard, 0u);
  EXPECT_EQ(limit.level, FOLIO_LEVEL_CALM);
  EXPECT_GT(limit.held, 0u);
  ASSERT_TRUE(folio_set_limit(1000 * kMiB, 2000 * kMiB));
  limit = limit_now();
  EXPECT_EQ(limit.soft, 1000 * kMiB);
  EXPECT_EQ(limit.hard, 2000 * kMiB);
  void *const object = opaque(malloc(300 * kMiB));
  EXPECT_GE(limit_now().held, 300 * kMiB);
  free(object);
  EXPECT_TRUE(folio_set_limit(1000 * kMiB, 0));
  EXPECT_TRUE(folio_set_limit(0, 1000 * kMiB));
  EXPECT_TRUE(folio_set_limit(1000 * kMiB, 1000 * kMiB));
  EXPECT_FALSE(folio_set_limit(1001 * kMiB, 1000 * kMiB));
  EXPECT_FALSE(folio_set_limit(100, 50)) << "also where both would be raised to the least";
  EXPECT_FALSE(folio_set_limit(0, SIZE_MAX));
  EXPECT_FALSE(folio_set_limit(SIZE_MAX, 0));
  EXPECT_EQ(limit_now().soft, 1000 * kMiB);
  EXPECT_EQ(limit_now().hard, 1000 * kMiB);
  EXPECT_TRUE(folio_set_limit(0, 0));
  EXPECT_EQ(limit_now().soft, 0u);
}

TEST(Limit, AnOlderProgramsStructIsFilledAsFarAsItGoes) {
  folio_limit limit;
  memset(&limit, 0x5a, sizeof limit);
  limit.struct_size = offsetof(folio_limit, held);
  ASSERT_TRUE(folio_limit_get(&limit));
  EXPECT_EQ(limit.hard, 0u);
  EXPECT_EQ(limit.held, size_t{0x5a5a5a5a5a5a5a5a});
  limit.struct_size = 0;
  EXPECT_FALSE(folio_limit_get(&limit));
}

TEST(Limit, ALimitBelowWhatAnyProgramNeedsIsRaised) {
  EXPECT_EQ(in_child([] {
              if (!folio_set_limit(1, 2)) return 1;
              const folio_limit limit = limit_now();
              return limit.soft == 4 * kMiB && limit.hard == 4 * kMiB ? 0 : 2;
            }),
            0);
}

// ---- Unwinding ----

bool set_hard_limit(size_t more) { return folio_set_limit(0, limit_now().held + more); }

TEST(Limit, AProgramUnwindsFromLargeObjects) {
  EXPECT_EQ(in_child([] {
              if (!set_hard_limit(64 * kMiB)) return 1;
              for (int round = 0; round < 3; round++) {
                bool caught = false;
                std::string story;
                try {
                  std::vector<std::unique_ptr<char[]>> buffers;
                  for (int i = 0; i < 100000; i++) buffers.emplace_back(opaque(new char[200000]));
                } catch (const std::bad_alloc &) {
                  caught = true;
                  // While it unwinds and afterwards a program allocates small objects.
                  std::map<int, std::string> names;
                  for (int i = 0; i < 1000; i++) names[i] = std::string(static_cast<size_t>(i), 'x');
                  story = names[999];
                }
                if (!caught) return 2;
                if (story.size() != 999) return 3;
              }
              return limit_now().refused >= 3 ? 0 : 4;
            }),
            0);
}

TEST(Limit, WhileBuffersAreHeldSmallObjectsAreThere) {
  EXPECT_EQ(in_child([] {
              if (!set_hard_limit(64 * kMiB)) return 1;
              std::vector<char *> buffers;
              while (char *buffer = opaque(new (std::nothrow) char[500000])) buffers.push_back(buffer);
              if (buffers.size() < 100) return 2;
              std::list<std::string> log;
              for (int i = 0; i < 3000; i++) log.emplace_back(100, 'y');
              return limit_now().level == FOLIO_LEVEL_AT_HARD || !buffers.empty() ? 0 : 3;
            }),
            0);
}

TEST(Limit, AProgramUnwindsFromSmallObjects) {
  EXPECT_EQ(in_child([] {
              if (!set_hard_limit(48 * kMiB)) return 1;
              for (int round = 0; round < 3; round++) {
                bool caught = false;
                try {
                  std::list<std::string> texts;
                  for (;;) texts.emplace_back(100, 'z');
                } catch (const std::bad_alloc &) {
                  caught = true;
                }
                if (!caught) return 2;
                std::vector<std::string> after(10000, std::string(500, 'a'));
              }
              return 0;
            }),
            0);
}

std::unique_ptr<std::vector<std::string>> *droppable;

TEST(Limit, TheNewHandlerIsAskedFirst) {
  EXPECT_EQ(in_child([] {
              auto cache = std::make_unique<std::vector<std::string>>(300, std::string(100000, 'c'));
              droppable = &cache;
              if (!set_hard_limit(4 * kMiB)) return 1;
              std::set_new_handler([] {
                if (*droppable == nullptr) throw std::bad_alloc();
                droppable->reset();
              });
              delete[] opaque(new char[20 * kMiB]);
              return cache == nullptr ? 0 : 2;
            }),
            0);
}

TEST(Limit, FailuresSetErrnoAndLeaveObjectsAlone) {
  EXPECT_EQ(in_child([] {
              void *const object = opaque(malloc(2 * kMiB));
              fill(object, 2 * kMiB, 3);
              if (!set_hard_limit(8 * kMiB)) return 1;
              errno = 0;
              if (opaque(realloc(object, 40 * kMiB)) != nullptr || errno != ENOMEM) return 2;
              if (first_difference(object, 2 * kMiB, 3) != 2 * kMiB) return 3;
              errno = 0;
              if (opaque(calloc(40, kMiB)) != nullptr || errno != ENOMEM) return 4;
              void *out = nullptr;
              if (posix_memalign(&out, 65536, 40 * kMiB) != ENOMEM || out != nullptr) return 5;
              free(object);
              return 0;
            }),
            0);
}

// ---- What the kernel counts ----

constexpr size_t kSizes[] = {32, 112, 1088, 2560, 5120, 16384, 28672, 98304, 1048576, 12582912};

// Cycles of bursts: all of `bytes` is live, then gone, and then wanted in another size.
void cycle(size_t bytes, unsigned rounds) {
  for (unsigned round = 0; round < rounds; round++) {
    for (const size_t size : kSizes) {
      std::vector<char *> objects;
      objects.reserve(bytes / size);
      for (size_t made = 0; made < bytes; made += size) {
        char *const object = static_cast<char *>(opaque(malloc(size)));
        if (object == nullptr) _exit(100);
        for (size_t at = 0; at < size; at += 4096) object[at] = 1;
        objects.push_back(object);
      }
      for (char *object : objects) free(object);
    }
  }
}

// Of all pages at their most, less those of files, which a child of a fork gets one after the other.
size_t peak_of_anonymous_pages() { return status("VmHWM") - status("RssFile"); }

// Most that was resident beyond what was when the limit was set, of a child with these limits beyond what it held.
int check_bursts(size_t soft, unsigned threads, size_t bytes) {
  folio_collect();  // what the program freed and never touched counts as held
  const size_t held = limit_now().held, before = status("RssAnon");
  if (!folio_set_limit(held + soft, 0)) return 1;
  std::vector<std::thread> others;
  for (unsigned i = 0; i < threads; i++) others.emplace_back([&] { cycle(bytes / threads, 2); });
  if (threads == 0) cycle(bytes, 2);
  for (std::thread &thread : others) thread.join();
  const size_t most = peak_of_anonymous_pages();
  const size_t allowed = before + soft + std::max(soft / 50, 8 * kMiB);
  if (most > allowed) fprintf(stderr, "%zu MiB resident, %zu allowed\n", most / kMiB, allowed / kMiB);
  return most <= allowed ? 0 : 2;
}

TEST(Limit, BurstsStayUnderTheSoftLimitAsTheKernelCounts) {
  EXPECT_EQ(in_child([] { return check_bursts(128 * kMiB, 0, 80 * kMiB); }), 0);
}

// A thread that is preempted while it gives back has claimed up to 4 MiB that the others then look for in vain: on a
// busy machine the peak was 2 to 3 MiB beyond what is allowed in one run of twenty. Never in three of three.
TEST(Limit, BurstsOfThreadsStayUnderTheSoftLimitAsTheKernelCounts) {
  int result = 2;
  for (int run = 0; run < 3 && result == 2; run++) {
    result = in_child([] { return check_bursts(128 * kMiB, 4, 80 * kMiB); });
  }
  EXPECT_EQ(result, 0);
}

// A container of 1.1 times what is live, with a soft limit as `cgroup` sets it: never more than the container has.
TEST(Limit, AContainerOfLittleMoreThanWhatIsLiveSuffices) {
  EXPECT_EQ(in_child([] {
              constexpr size_t kLive = 240 * kMiB, kContainer = kLive / 10 * 11;
              folio_collect();
              const size_t held = limit_now().held, before = status("RssAnon");
              if (!folio_set_limit(held + kContainer - kContainer / 16, 0)) return 1;
              // With its pointers.
              cycle(kLive / 8 * 6, 2);
              return peak_of_anonymous_pages() <= before + kContainer ? 0 : 2;
            }),
            0);
}

// ---- Functions ----

std::atomic<int> reported{-1};
std::atomic<void *> cache{nullptr};
std::atomic<unsigned> calls{0};

void drop_cache(int level) {
  calls++;
  reported = level;
  free(opaque(malloc(5000)));
  free(cache.exchange(nullptr));
}

TEST(Pressure, TheProgramsFunctionIsCalledNearTheLimit) {
  EXPECT_EQ(in_child([] {
              if (!folio_on_pressure(FOLIO_LEVEL_TIGHT, drop_cache)) return 1;
              usleep(300000);
              if (reported != -1) return 2;
              cache = malloc(100 * kMiB);
              if (!folio_set_limit(limit_now().held + kMiB, 0)) return 3;
              for (int i = 0; i < 3000 && cache != nullptr; i++) usleep(10000);
              if (cache != nullptr) return 4;
              if (reported < FOLIO_LEVEL_TIGHT) return 5;
              // Far from the limit again it is quiet.
              usleep(2500000);
              const unsigned before = calls;
              usleep(2500000);
              return calls == before ? 0 : 6;
            }),
            0);
}

TEST(Pressure, AFunctionThatIsTakenBackIsNotCalled) {
  EXPECT_EQ(in_child([] {
              if (!folio_on_pressure(FOLIO_LEVEL_NEAR, drop_cache)) return 1;
              if (!folio_on_pressure(FOLIO_LEVEL_CALM, drop_cache)) return 2;
              if (!folio_set_limit(4 * kMiB, 0)) return 3;
              void *const object = opaque(malloc(20 * kMiB));
              usleep(2500000);
              free(object);
              return calls == 0 ? 0 : 4;
            }),
            0);
}

TEST(Pressure, WhatCannotBeIsRefused) {
  EXPECT_FALSE(folio_on_pressure(5, drop_cache));
  EXPECT_FALSE(folio_on_pressure(-1, drop_cache));
  EXPECT_FALSE(folio_on_pressure(FOLIO_LEVEL_NEAR, nullptr));
}

TEST(Pressure, AFunctionIsCalledInTheChildOfAForkToo) {
  EXPECT_EQ(in_child([] {
              if (!folio_on_pressure(FOLIO_LEVEL_TIGHT, drop_cache)) return 1;
              return in_child([] {
                cache = malloc(100 * kMiB);
                if (!folio_set_limit(limit_now().held + kMiB, 0)) return 3;
                for (int i = 0; i < 3000 && cache != nullptr; i++) usleep(10000);
                return cache == nullptr ? 0 : 4;
              });
            }),
            0);
}

}  // namespace
