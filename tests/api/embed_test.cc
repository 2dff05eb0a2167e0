// The embedding variant, loaded late by dlopen into a program with many threads: it overrides nothing, works in threads
// of before and after, and stays when it is closed.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "folio/folio.h"

namespace {

// The functions of the library, looked up: the program is not linked with it.
struct Folio {
  void *library = nullptr;
  decltype(&folio_malloc) malloc = nullptr;
  decltype(&folio_calloc) calloc = nullptr;
  decltype(&folio_realloc) realloc = nullptr;
  decltype(&folio_free) free = nullptr;
  decltype(&folio_is_ours) is_ours = nullptr;
  decltype(&folio_collect) collect = nullptr;

  template <class Function>
  void find(Function *function, const char *name) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    ASSERT_NE(*function, nullptr) << name;
  }

  void load() {
    library = dlopen(FOLIO_EMBED_FILE, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    find(&malloc, "folio_malloc");
    find(&calloc, "folio_calloc");
    find(&realloc, "folio_realloc");
    find(&free, "folio_free");
    find(&is_ours, "folio_is_ours");
    find(&collect, "folio_collect");
  }
};

Folio folio;

// Allocates and frees by Folio and by the libc in turn; false if contents changed or one served the other.
bool work(unsigned rounds) {
  void *objects[50] = {};
  for (unsigned i = 0; i < rounds; i++) {
    void *&object = objects[i % 50];
    if (object != nullptr && *static_cast<unsigned char *>(object) != (i - 50) % 251) return false;
    folio.free(object);
    size_t bytes = i % 500 == 0 ? 1500000 : i % 40 == 0 ? 30000 : 1 + i % 1500;
    object = i % 2 == 0 ? folio.malloc(bytes) : folio.calloc(1, bytes);
    if (i % 3 == 0) object = folio.realloc(object, bytes * 2);
    if (object == nullptr || !folio.is_ours(object)) return false;
    *static_cast<unsigned char *>(object) = static_cast<unsigned char>(i % 251);
    void *libcs = malloc(bytes);
    if (libcs == nullptr || folio.is_ours(libcs)) return false;
    memset(libcs, 1, bytes);
    free(libcs);
  }
  for (void *object : objects) folio.free(object);
  return true;
}

class Embed : public testing::Test {
 protected:
  // Threads that run before the library is loaded, and use it as soon as it is.
  static void SetUpTestSuite() {
    static std::atomic<bool> loaded{false};
    static std::atomic<int> bad{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++) {
      threads.emplace_back([] {
        while (!loaded) free(malloc(1000));
        bad += !work(3000);
      });
    }
    usleep(10000);
    folio.load();
    loaded = true;
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(bad, 0);
  }
};

TEST_F(Embed, OverridesNothing) {
  ASSERT_NE(folio.malloc, nullptr);
  void *object = malloc(100);
  EXPECT_FALSE(folio.is_ours(object));
  free(object);
  int *number = new int(3);
  EXPECT_FALSE(folio.is_ours(number));
  delete number;
  for (const char *name : {"malloc", "calloc", "realloc", "free", "posix_memalign", "malloc_usable_size", "_Znwm",
                           "_ZdlPv", "aligned_alloc", "mallinfo2", "malloc_trim"}) {
    void *found = dlsym(folio.library, name);
    EXPECT_TRUE(found == nullptr || found == dlsym(RTLD_DEFAULT, name)) << name << " is exported";
  }
}

TEST_F(Embed, WorksInThreadsStartedLater) {
  std::atomic<int> bad{0};
  for (int round = 0; round < 50; round++) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++) threads.emplace_back([&bad] { bad += !work(500); });
    for (std::thread &thread : threads) thread.join();
  }
  EXPECT_EQ(bad, 0);
}

TEST_F(Embed, WorksAfterFork) {
  std::atomic<bool> stop{false};
  std::thread busy([&stop] {
    while (!stop) work(100);
  });
  for (int i = 0; i < 30; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      alarm(200);
      _exit(work(2000) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
  }
  stop = true;
  busy.join();
}

// Threads hold its memory, so dlclose does not unload it.
TEST_F(Embed, StaysWhenItIsClosed) {
  char *object = static_cast<char *>(folio.malloc(100));
  ASSERT_NE(object, nullptr);
  strcpy(object, "still here");
  ASSERT_EQ(dlclose(folio.library), 0);
  EXPECT_STREQ(object, "still here");
  folio.free(object);
  EXPECT_TRUE(work(2000));
  std::thread([] { EXPECT_TRUE(work(100)); }).join();
  void *again = dlopen(FOLIO_EMBED_FILE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(dlsym(again, "folio_malloc"), reinterpret_cast<void *>(folio.malloc));
}

}  // namespace
