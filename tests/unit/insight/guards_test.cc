#include "insight/guards.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "base/text.h"
#include "core/lifecycle.h"
#include "core/realloc.h"
#include "insight/samples.h"
#include "unit/child.h"
#include "unit/core/heap.h"
#include "unit/stderr_capture.h"

using namespace folio;
using namespace folio_test;

namespace {

// What the process had before, for the tests of handlers.
volatile sig_atomic_t caught = 0;
const void* volatile caught_at = nullptr;
[[maybe_unused]] void note_and_leave(int, siginfo_t* info, void*) {
  caught = caught + 1;
  caught_at = info->si_addr;
  _exit(42);
}

[[maybe_unused]] struct sigaction set_handler(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {
  }, old{};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = handler;
  EXPECT_EQ(sigaction(SIGSEGV, &action, &old), 0);
  return old;
}

bool can_find_code() {
  os::Module module;
  return os::find_module(reinterpret_cast<void*>(&note_and_leave), &module);
}

bool is_guarded(const void* object) { return chunk_code(object) == kCodeGuarded; }
size_t page_bytes() { return os::page_bytes(); }
GuardPool& pool() { return *guard_pool.load(order::acquire); }

class Guards : public ::testing::Test {
 protected:
  Guards() {
    EXPECT_TRUE(guard_pool.load(order::acquire) != nullptr || guards_start(1));
    guard_interval.set(1);  // every object of a hundred bytes and more, and most smaller ones
    EXPECT_TRUE(seam_guard());
    EXPECT_EQ(seam_mode.load(order::relaxed), kGuarding);
  }
  ~Guards() override {
    guard_interval.set(0);
    EXPECT_TRUE(seam_open());
    EXPECT_EQ(guard_stats().objects, 0u);
    expect_everything_free();
  }
};

// How a child ends that does that, and what it writes.
struct Ended {
  int status;
  std::string text;
  bool by(int signal) const { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }
  bool says(const std::string& what) const { return text.find(what) != std::string::npos; }
};
Ended ended_by(const std::function<void()>& body) {
  StderrCapture capture;
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (kSanitized) signal(SIGABRT, SIG_DFL);
    const rlimit none{};
    setrlimit(RLIMIT_CORE, &none);
    body();
    _exit(kPassed);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  std::string text = capture.stop();
  // An emulator says how it ended, too.
  if (const size_t at = text.find("qemu: "); at != std::string::npos) text.erase(at, text.find('\n', at) + 1 - at);
  return {status, text};
}

// Not all emulators tell a handler why the processor faulted.
[[maybe_unused]] std::string access(const char* kind) {
  return std::string("folio: ") + (kEmulated ? "access" : kind) + "(";
}

std::string number(const void* address) {
  Text text;
  text << address;
  return std::string(text.data(), text.length());
}

char* guarded(size_t size) {
  auto* const object = static_cast<char*>(alloc(size));
  EXPECT_TRUE(is_guarded(object));
  return object;
}

// One that ends where its page does, or one that starts there.
char* guarded_at_end(size_t size) {
  for (;;) {
    char* const object = guarded(size);
    if (reinterpret_cast<uintptr_t>(object) % page_bytes() != 0) return object;
    free_object(object);
  }
}
[[maybe_unused]] char* guarded_at_start(size_t size) {
  for (;;) {
    char* const object = guarded(size);
    if (reinterpret_cast<uintptr_t>(object) % page_bytes() == 0) return object;
    free_object(object);
  }
}

TEST_F(Guards, EverySizeUpToAPage) {
  unsigned at_start = 0, at_end = 0;
  for (const size_t size : edge_sizes()) {
    for (unsigned round = 0; round < 3; ++round) {
      auto* const object = static_cast<char*>(alloc(size));
      ASSERT_NE(object, nullptr);
      if (size >= 100) EXPECT_EQ(is_guarded(object), size <= page_bytes()) << size;
      if (is_guarded(object)) {
        EXPECT_EQ(usable(object), size);
        EXPECT_TRUE(aligned_to(object, size > 8 ? 16 : 8)) << size;
        const size_t place = reinterpret_cast<uintptr_t>(object) % page_bytes();
        if (place == 0) {
          ++at_start;
        } else {
          ++at_end;
          EXPECT_LT(page_bytes() - place - size, 16u);
        }
        EXPECT_EQ(folio::totals().live, size);
      }
      fill(object, size, round);
      EXPECT_TRUE(filled(object, size, round));
      release_sized(object, size, "test");
    }
  }
  EXPECT_GT(at_start, 0u);
  EXPECT_GT(at_end, at_start);
}

TEST_F(Guards, AlignedAndZeroed) {
  for (size_t alignment = 8; alignment <= page_bytes() * 2; alignment *= 2) {
    for (const size_t size : {size_t{1}, size_t{100}, size_t{1000}, page_bytes()}) {
      char* const object = static_cast<char*>(allocate_aligned(alignment, size, true));
      if (size >= 100) EXPECT_EQ(is_guarded(object), alignment <= page_bytes()) << alignment;
      EXPECT_TRUE(aligned_to(object, alignment));
      EXPECT_TRUE(all_zero(object, size));
      memset(object, 0xff, size);
      release_aligned_sized(object, size, "test");
    }
  }
  for (unsigned i = 0; i < 1000; ++i) {
    void* const object = allocate_zeroed(1 + i);
    EXPECT_TRUE(all_zero(object, 1 + i));
    memset(object, 0xff, 1 + i);
    free_object(object);
  }
}

TEST_F(Guards, ResizedTheyMoveSoThatTheEndIsGuardedAgain) {
  char* object = guarded(200);
  fill(object, 200, 1);
  EXPECT_EQ(reallocate(object, 1, 200, "test"), object);
  EXPECT_FALSE(expand(object, 201, "test"));
  char* const larger = static_cast<char*>(reallocate(object, 1, 300, "test"));
  EXPECT_NE(larger, object);
  EXPECT_EQ(usable(larger), 300u);
  EXPECT_TRUE(filled(larger, 200, 1));
  char* const smaller = static_cast<char*>(reallocate(larger, 1, 150, "test"));
  EXPECT_NE(smaller, larger);
  EXPECT_EQ(usable(smaller), 150u);
  EXPECT_TRUE(filled(smaller, 150, 1));
  char* const huge = static_cast<char*>(reallocate(smaller, 1, 20 * kMiB, "test"));
  EXPECT_TRUE(filled(huge, 150, 1));
  free_object(huge);
}

TEST_F(Guards, WhenAllSlotsAreTakenObjectsAreServedAsAny) {
  std::vector<char*> objects;
  for (unsigned i = 0; i < 1000; ++i) {
    objects.push_back(static_cast<char*>(alloc(100)));
    fill(objects.back(), 100, i);
  }
  EXPECT_EQ(guard_stats().objects, pool().live_most);
  EXPECT_EQ(guard_stats().bytes, 100u * pool().live_most);
  EXPECT_LE(pool().live_most * page_bytes() + sizeof(GuardPool), kMiB);
  for (unsigned i = 0; i < 1000; ++i) {
    EXPECT_TRUE(filled(objects[i], 100, i));
    free_object(objects[i]);
  }
}

// First in, first out: whatever is allocated meanwhile, a freed one's page comes last.
TEST_F(Guards, FreedOnesWaitLongest) {
  std::vector<char*> objects;
  while (guard_stats().objects < pool().live_most) objects.push_back(guarded(100));
  char* const freed = objects.back();
  objects.pop_back();
  free_object(freed);
  const auto page_of = [](const void* object) { return reinterpret_cast<uintptr_t>(object) / page_bytes(); };
  const unsigned waiting = pool().slots - pool().live_most;
  for (unsigned i = 0; i < waiting; ++i) {
    char* const other = guarded(100);
    EXPECT_NE(page_of(other), page_of(freed)) << i;
    free_object(other);
  }
  char* const other = guarded(100);
  EXPECT_EQ(page_of(other), page_of(freed));
  free_object(other);
  for (char* const object : objects) free_object(object);
}

TEST_F(Guards, WhatTheInterfaceSaysOfThem) {
  char* const object = guarded_at_end(100);
  EXPECT_TRUE(chunk_code(object) != kCodeNone);
  const GuardPlace live = guard_place(object + 99);
  EXPECT_EQ(live.base, object);
  EXPECT_EQ(live.size, 100u);
  EXPECT_TRUE(live.live());
  EXPECT_EQ(live.slot->allocated.thread, os::thread_id());
  EXPECT_EQ(guard_place(object + page_bytes()).slot, nullptr);
  free_object(object);
  const GuardPlace freed = guard_place(object);
  EXPECT_EQ(freed.base, object);
  EXPECT_FALSE(freed.live());
  EXPECT_EQ(freed.slot->freed.thread, os::thread_id());
}

#if !defined(FOLIO_TEST_SANITIZED)
TEST_F(Guards, AnOverflowFaults) {
  char* const object = guarded_at_end(112);
  const Ended written = ended_by([&] { object[opaque(size_t{112})] = 1; });
  EXPECT_TRUE(written.by(SIGSEGV));
  EXPECT_EQ(written.text.find(access("write") + number(object + 112) +
                              "): overflow: 0 bytes behind the end of a guarded "
                              "object of 112 bytes at " +
                              number(object) + " (see docs/errors.md#guarded-objects)\n"),
            0u)
      << written.text;
  EXPECT_TRUE(written.says("  accessed by thread ") && written.says("  allocated by thread "));
  EXPECT_FALSE(written.says("  freed by thread "));
  const Ended read = ended_by([&] { opaque(object[opaque(size_t{117})]); });
  EXPECT_TRUE(read.by(SIGSEGV));
  EXPECT_TRUE(read.says(access("read") + number(object + 117) + "): overflow: 5 bytes behind the end")) << read.text;
  free_object(object);
}

TEST_F(Guards, AnUnderflowFaults) {
  char* const object = guarded_at_start(100);
  const Ended read = ended_by([&] { opaque(object[-opaque(ptrdiff_t{3})]); });
  EXPECT_TRUE(read.by(SIGSEGV));
  EXPECT_TRUE(read.says(access("read") + number(object - 3) +
                        "): underflow: 3 bytes before the start of a guarded object "
                        "of 100 bytes at " +
                        number(object)))
      << read.text;
  free_object(object);
}

TEST_F(Guards, AUseAfterFreeFaults) {
  char* const object = guarded(100);
  free_object(object);
  const Ended written = ended_by([&] { object[opaque(size_t{7})] = 1; });
  EXPECT_TRUE(written.by(SIGSEGV));
  EXPECT_TRUE(written.says(access("write") + number(object + 7) +
                           "): use after free: byte 7 of a guarded object of 100 "
                           "bytes at " +
                           number(object)))
      << written.text;
  EXPECT_TRUE(written.says("  freed by thread " + std::to_string(os::thread_id())));
  const Ended ignored = ended_by([&] {
    options.errors = kErrorsIgnore;
    object[opaque(size_t{7})] = 1;
  });
  EXPECT_TRUE(ignored.by(SIGSEGV));
  EXPECT_EQ(ignored.text, "");
}

TEST_F(Guards, WhatIsWrittenBesideItOnItsPageIsSeenWhenItIsFreed) {
  char* const object = guarded_at_end(100);
  for (const ptrdiff_t at : {ptrdiff_t{100}, ptrdiff_t{111}, ptrdiff_t{-1}, ptrdiff_t{-2000}}) {
    const Ended ended = ended_by([&] {
      object[at] = 0;
      free_object(object);
    });
    EXPECT_TRUE(ended.by(SIGABRT)) << at;
    const std::string where = at < 0 ? std::to_string(-at) + (at == -1 ? " byte before" : " bytes before")
                                     : std::to_string(at - 100) + " bytes behind";
    EXPECT_TRUE(ended.says(std::string("free(") + number(object) + "): " + (at < 0 ? "underflow" : "overflow") +
                           ": written since it was allocated, " + where))
        << ended.text;
  }
  EXPECT_EQ(in_child([&] {
              options.errors = kErrorsIgnore;
              object[100] = 0;
              free_object(object);
              return guard_place(object).live() ? kFailed : kPassed;
            }),
            kPassed);
  free_object(object);
}

TEST_F(Guards, TheProgramsHandlerGetsWhatItGotBefore) {
  char* const object = guarded_at_end(112);
  void* const own = mmap(nullptr, page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  // A handler that was there before is what the fault goes on to; so this process gets one and starts once more.
  const Ended before = ended_by([&] {
    signal(SIGSEGV, SIG_DFL);
    set_handler(note_and_leave);
    if (os::on_fault(report_guard_fault)) object[opaque(size_t{112})] = 1;
  });
  EXPECT_TRUE(WIFEXITED(before.status) && WEXITSTATUS(before.status) == 42) << before.status;
  EXPECT_TRUE(before.says("overflow")) << before.text;
  const Ended of_its_own = ended_by([&] {
    signal(SIGSEGV, SIG_DFL);
    set_handler(note_and_leave);
    if (os::on_fault(report_guard_fault)) *static_cast<volatile char*>(own) = 1;
  });
  EXPECT_TRUE(WIFEXITED(of_its_own.status) && WEXITSTATUS(of_its_own.status) == 42);
  EXPECT_EQ(of_its_own.text, "");
  // One that comes later gets all, and may go on to the one that it replaced.
  static struct sigaction replaced;
  const Ended after = ended_by([&] {
    replaced = set_handler([](int signal, siginfo_t* info, void* context) {
      replaced.sa_sigaction(signal, info, context);
      _exit(43);
    });
    object[opaque(size_t{112})] = 1;
  });
  EXPECT_TRUE(WIFEXITED(after.status) && WEXITSTATUS(after.status) == 43) << after.status;
  EXPECT_TRUE(after.says("overflow")) << after.text;
  // A signal that was sent ends the process as ever, and is none of Folio's.
  const Ended sent = ended_by([] { raise(SIGSEGV); });
  EXPECT_TRUE(sent.by(SIGSEGV));
  EXPECT_EQ(sent.text, "");
  const Ended wild = ended_by([&] { *static_cast<volatile char*>(own) = 1; });
  EXPECT_TRUE(wild.by(SIGSEGV));
  EXPECT_EQ(wild.text, "");
  munmap(own, page_bytes());
  free_object(object);
}

TEST_F(Guards, OnASmallStackOfTheHandlersOwn) {
  char* const object = guarded_at_end(112);
  const Ended ended = ended_by([&] {
    stack_t stack{};
    stack.ss_size = 8192;
    stack.ss_sp = malloc(stack.ss_size);
    sigaltstack(&stack, nullptr);
    object[opaque(size_t{112})] = 1;
  });
  EXPECT_TRUE(ended.by(SIGSEGV));
  EXPECT_TRUE(ended.says("overflow") && ended.says("addr2line")) << ended.text;
  free_object(object);
}

// A thread that could end the process at once waits for the report of the other one.
TEST_F(Guards, ThreadsThatFaultAtOnceGiveWholeReports) {
  char* const object = guarded_at_end(112);
  for (unsigned i = 0; i < 20; ++i) {
    const Ended ended = ended_by([&] {
      std::atomic<unsigned> ready{0};
      std::vector<std::thread> threads;
      for (unsigned t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
          ++ready;
          while (ready < 4) {
          }
          object[opaque(size_t{112})] = 1;
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
    EXPECT_TRUE(ended.by(SIGSEGV));
    const std::string what = "overflow: 0 bytes behind";
    const size_t first = ended.text.find(what);
    ASSERT_NE(first, std::string::npos);
    EXPECT_EQ(ended.text.find(what, first + 1), std::string::npos) << "one report";
    EXPECT_TRUE(ended.says("addr2line")) << ended.text;
  }
  free_object(object);
}
#endif

TEST_F(Guards, MisusedFreesAreReported) {
  char* const object = guarded_at_end(100);
  struct {
    const void* address;
    const char* says;
  } cases[] = {{object + 16, "not the start of an object: byte 16 of a guarded object of 100 bytes"},
               {object - 16, "not the start of an object: 16 bytes before the start of a guarded object"},
               {object + page_bytes(), "not the start of an object: beside guarded objects"}};
  for (const auto& each : cases) {
    const Ended ended = ended_by([&] { free_object(const_cast<void*>(each.address)); });
    EXPECT_TRUE(ended.by(SIGABRT));
    EXPECT_TRUE(ended.says(each.says) && ended.says("#invalid-free)")) << ended.text;
  }
  const Ended sized = ended_by([&] { release_sized(object, 101, "operator delete"); });
  EXPECT_TRUE(sized.says("size 101 given, but the object has 100 usable bytes (see")) << sized.text;
  free_object(object);
  for (const bool again : {true, false}) {
    const Ended ended = ended_by([&] { again ? free_object(object) : void(reallocate(object, 1, 200, "realloc")); });
    EXPECT_TRUE(ended.by(SIGABRT));
    EXPECT_TRUE(ended.says("double free of a guarded object of 100 bytes at " + number(object))) << ended.text;
    EXPECT_TRUE(ended.says("  called by thread ") && ended.says("  freed by thread ")) << ended.text;
    EXPECT_TRUE(!can_find_code() || ended.says("folio:     #2 ")) << ended.text;
  }
}

// As many stand for all as for the profile: see Seam.TheChosenStandForAll, which has the same countdown.
TEST_F(Guards, OneInSoManyBytes) {
  guard_interval.set(64 * kKiB);
  std::thread([] {
    const unsigned calls = rounds(400000);
    unsigned found = 0;
    for (unsigned i = 0; i < calls; ++i) {
      void* const object = alloc(100);
      found += is_guarded(object) ? 1 : 0;
      free_object(object);
    }
    const double expected = calls * 100.0 / (64 * kKiB);
    EXPECT_GT(found, expected * 0.5);
    EXPECT_LT(found, expected * 1.5);
  }).join();
}

TEST_F(Guards, TheProfileMayRunToo) {
  ASSERT_TRUE(seam_close(1));
  char* const object = guarded(1000);
  unsigned samples = 0;
  const auto count = [&] {
    samples = 0;
    for (unsigned k = 0; k < kSampleTables; ++k) {
      Sample* const table = sample_tables[k].load(order::acquire);
      for (unsigned i = 0; table != nullptr && i < sample_slots(k); ++i) {
        const bool live = (table[i].mark.load(order::relaxed) & 3) == kSampleLive;
        samples += live && table[i].object.get() == object ? 1 : 0;
      }
    }
    return samples;
  };
  EXPECT_EQ(count(), 1u);
  ASSERT_TRUE(seam_open());
  EXPECT_EQ(seam_mode.load(order::relaxed), kGuarding);
  char* const other = guarded(1000);
  free_object(object);
  EXPECT_EQ(count(), 0u);
  free_object(other);
  ASSERT_TRUE(seam_close(0));
  free_object(guarded(100));
}

TEST_F(Guards, InTheChildOfAFork) {
  char* const object = guarded_at_end(112);
  fill(object, 112, 5);
  EXPECT_EQ(in_child([&] {
              if (!filled(object, 112, 5)) return kFailed;
              free_object(object);
              for (unsigned i = 0; i < 1000; ++i) {
                void* const other = alloc(100 + i % 100);
                if (!is_guarded(other)) return kFailed;
                memset(other, 1, 100);
                free_object(other);
              }
              return kPassed;
            }),
            kPassed);
  EXPECT_TRUE(filled(object, 112, 5));
  free_object(object);
#if !defined(FOLIO_TEST_SANITIZED)
  EXPECT_TRUE(ended_by([&] { object[opaque(size_t{1})] = 1; }).says("use after free"));
#endif
}

// Without the advice of Linux 6.13, by mprotect, from the start or from some moment on, as when memory is locked; and
// where nothing can be purged either, so that pages keep what was there.
TEST_F(Guards, WhereTheKernelTakesNoAdvice) {
  enum { kNoneAtAll, kNotThis, kNotThisFromNowOn };
  for (const int how : {kNoneAtAll, kNotThis, kNotThisFromNowOn}) {
    const Ended ended = ended_by([&] {
      char* const object = guarded_at_end(112);
      constexpr unsigned kGuardInstall = 102;
      if (!(how == kNoneAtAll ? refuse_call(SYS_madvise, EINVAL)
                              : refuse_call_with(SYS_madvise, kGuardInstall, EINVAL))) {
        _exit(kCannot);
      }
      if (how != kNotThisFromNowOn && (!guards_start(1) || pool().by_advice)) _exit(kFailed);
      for (unsigned i = 0; i < 2000; ++i) {
        auto* const zeroed = static_cast<char*>(allocate_zeroed(200));
        if (!is_guarded(zeroed) || !all_zero(zeroed, 200)) _exit(kFailed);
        memset(zeroed, 1, 200);
        free_object(zeroed);
      }
      if (how == kNotThisFromNowOn) free_object(object);  // else it is of a pool that is forgotten
      char* const last = guarded_at_end(112);
      free_object(last);
      if (kSanitized) _exit(kPassed);
      last[opaque(size_t{5})] = 1;
    });
    if (WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == kCannot) GTEST_SKIP() << "no filters here";
    if (kSanitized) {
      EXPECT_EQ(ended.status, 0);
    } else {
      EXPECT_TRUE(ended.by(SIGSEGV)) << ended.status;
      EXPECT_TRUE(ended.says("use after free: byte 5 of a guarded object of 112 bytes")) << ended.text;
    }
  }
}

TEST_F(Guards, WhereNoPageCanBeOpenedObjectsAreServedAsAny) {
  EXPECT_EQ(in_child([] {
              void* objects[200];
              for (void*& object : objects) object = alloc(100);
              for (void* object : objects) free_object(object);
              if (!refuse_call(SYS_madvise, EINVAL)) return kPassed;
              void* const object = alloc(100);
              if (object == nullptr || is_guarded(object)) return pool().by_advice ? kFailed : kPassed;
              memset(object, 1, 100);
              free_object(object);
              return kPassed;
            }),
            kPassed);
}

TEST_F(Guards, ThreadsThatWriteEveryByte) {
  std::atomic<uint64_t> seen{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      struct Object {
        void* at = nullptr;
        size_t size = 0;
        unsigned seed = 0;
      };
      std::vector<Object> live(60);
      for (unsigned i = 0; i < rounds(20000); ++i) {
        Object& each = live[random() % live.size()];
        if (each.at != nullptr) EXPECT_TRUE(filled(each.at, each.size, each.seed));
        const size_t size = 1 + random() % (random() % 8 == 0 ? 6000 : 500);
        if (random() % 3 == 0 && each.at != nullptr) {
          each.at = reallocate(each.at, 1, size, "test");
          EXPECT_TRUE(filled(each.at, std::min(size, each.size), each.seed));
        } else {
          free_object(each.at);
          each.at = alloc(size);
        }
        each.size = size;
        each.seed = i;
        seen += is_guarded(each.at) ? 1 : 0;
        fill(each.at, size, i);
      }
      for (Object& each : live) free_object(each.at);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(seen.load(), rounds(1000));
}

}  // namespace
