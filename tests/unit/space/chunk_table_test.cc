#include "space/chunk_table.h"

#include <stdio.h>

#include <fstream>
#include <string>
#include <thread>

#include "space/chunks.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

char* address(uintptr_t at) { return reinterpret_cast<char*>(at); }
constexpr uintptr_t kTop = uintptr_t{1} << arch::kAddressBits;
constexpr uintptr_t kWindowBytes = uintptr_t{kWindowChunks} << kChunkShift;

// Address space that no process has anything in: far below where the kernel maps, above where programs are linked.
constexpr uintptr_t kNowhere = uintptr_t{0x1230} << 32;

// Enters a chunk that does not exist, for the length of a test.
class Entered {
 public:
  Entered(char* chunk, void* descriptor, unsigned code) : chunk_(chunk) {
    EXPECT_TRUE(chunk_table_open(chunk, kChunkBytes));
    set_chunk(window_make(chunk), chunk, descriptor, code);
  }
  ~Entered() { set_chunk(window_make(chunk_), chunk_, nullptr, kCodeNone); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  char* chunk_;
};

TEST(ChunkTable, NothingIsOursAtFirst) {
  int on_stack = 0;
  for (const void* at : {static_cast<const void*>(nullptr), static_cast<const void*>(&on_stack),
                         static_cast<const void*>(address(kNowhere)), static_cast<const void*>(address(kTop - 1))}) {
    EXPECT_EQ(chunk_code(at), kCodeNone) << at;
    EXPECT_EQ(chunk_code_unchecked(at), kCodeNone) << at;
    EXPECT_EQ(descriptor_at(at), nullptr) << at;
  }
}

TEST(ChunkTable, AddressesBeyondTheTableAreNotOurs) {
  for (const uintptr_t at : {kTop, kTop + 1, uintptr_t{1} << 63, ~uintptr_t{0}, uintptr_t{0xffff800000000000}}) {
    EXPECT_EQ(chunk_code(address(at)), kCodeNone) << std::hex << at;
    EXPECT_EQ(window_of(address(at)), nullptr) << std::hex << at;
    EXPECT_EQ(descriptor_at(address(at)), nullptr) << std::hex << at;
  }
}

TEST(ChunkTable, AnEntryHoldsForItsChunkAndNoOther) {
  int descriptor = 0;
  char* const chunk = address(kNowhere + 5 * kChunkBytes);
  const Entered entered(chunk, &descriptor, 7);
  for (const size_t at : {size_t{0}, size_t{1}, kChunkBytes / 2, kChunkBytes - 1}) {
    EXPECT_EQ(chunk_code(chunk + at), 7u);
    EXPECT_EQ(descriptor_at(chunk + at), &descriptor);
    EXPECT_EQ(chunk_start(chunk + at), chunk);
  }
  for (char* const at : {chunk - 1, chunk + kChunkBytes}) {
    EXPECT_EQ(chunk_code(at), kCodeNone);
    EXPECT_EQ(descriptor_at(at), nullptr);
  }
}

TEST(ChunkTable, TheFirstAndTheLastChunkHaveEntries) {
  int low = 0, high = 0;
  const Entered first(address(0), &low, 1), last(address(kTop - kChunkBytes), &high, kCodeWatched - 1);
  EXPECT_EQ(descriptor_at(address(1)), &low);
  EXPECT_EQ(chunk_code(address(kTop - 1)), kCodeWatched - 1);
  EXPECT_EQ(descriptor_at(address(kTop - 1)), &high);
}

// A limit on data, or on commit, counts what is writable, and mlockall fills it. Closed before main, as a rule.
TEST(ChunkTable, WritableIsOnlyWhatHasEntries) {
  const auto table = reinterpret_cast<uintptr_t>(chunk_table);
  const auto count = [&] {
    std::ifstream maps("/proc/self/maps");
    size_t steps = 0;
    for (std::string line; std::getline(maps, line);) {
      uintptr_t from, to;
      char rights[8];
      if (sscanf(line.c_str(), "%lx-%lx %7s", &from, &to, rights) != 3 || rights[1] != 'w') continue;
      for (uintptr_t at = table; at < table + sizeof chunk_table; at += kTableStepBytes) steps += at >= from && at < to;
    }
    return steps;
  };
  chunk_table_close();
  if (os::thread_total() != 1) GTEST_SKIP() << "an emulator's threads are seen: it stays open then";
  const size_t before = count();
  EXPECT_LT(before, 20u) << "of 8192 or 16384";
  EXPECT_TRUE(chunk_table_open(address(kNowhere * 3), kChunkBytes));
  EXPECT_EQ(count(), before + 1);
  EXPECT_TRUE(chunk_table_open(address(kNowhere * 3), kWindowBytes));
  EXPECT_EQ(count(), before + 1);
  constexpr uintptr_t kStepSpan = (kTableStepBytes / sizeof chunk_table[0]) << kChunkShift;
  EXPECT_TRUE(chunk_table_open(address(kNowhere * 3 + kStepSpan - kChunkBytes), 2 * kChunkBytes));
  EXPECT_EQ(count(), before + 2) << "what lies across two steps opens both";
}

TEST(ChunkTable, AWatchedChunkHasTheCodeOfItsBin) {
  int descriptor = 0;
  const Entered entered(address(kNowhere), &descriptor, kCodeWatched + 7);
  EXPECT_TRUE(is_watched(address(kNowhere)));
  EXPECT_EQ(chunk_code(address(kNowhere)), 7u);
}

TEST(ChunkTable, AWindowCoversItsChunks) {
  Window* const window = window_make(address(kNowhere + 3));
  ASSERT_NE(window, nullptr);
  EXPECT_EQ(window_make(address(kNowhere + kWindowBytes - 1)), window) << "made once";
  EXPECT_EQ(window_of(address(kNowhere)), window);
  EXPECT_NE(window_make(address(kNowhere + kWindowBytes)), window);
  EXPECT_EQ(window_of(address(kNowhere + 100 * kWindowBytes)), nullptr) << "looking makes none";
  for (unsigned i = 0; i < kWindowChunks; ++i) {
    char* const chunk = window->chunk(i);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(chunk), kNowhere + i * kChunkBytes);
    ASSERT_EQ(window_slot(chunk), i);
    ASSERT_EQ(window_slot(chunk + kChunkBytes - 1), i);
    ASSERT_EQ(cluster_state(chunk), &window->cluster[i / 8]) << "one for eight chunks";
  }
}

TEST(ChunkTable, ThreadsThatMakeAWindowGetTheSame) {
  constexpr unsigned kThreads = 4, kWindows = 50;
  Window* made[kThreads][kWindows];
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < kWindows; ++i) made[t][i] = window_make(address(kNowhere * 2 + i * kWindowBytes));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (unsigned i = 0; i < kWindows; ++i) {
    ASSERT_NE(made[0][i], nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(made[0][i]->chunk(0)), kNowhere * 2 + i * kWindowBytes);
    for (unsigned t = 1; t < kThreads; ++t) EXPECT_EQ(made[t][i], made[0][i]);
  }
}

}  // namespace
