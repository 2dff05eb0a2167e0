#include "insight/frames.h"

#include <execinfo.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "unit/child.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

bool can_find() {
  os::Module module;
  return os::find_module(reinterpret_cast<void*>(&can_find), &module) && module.unwind_table != nullptr;
}
constexpr const char* kCannotFind = "this libc does not tell where code lies";

// The frames of the caller, as the compiler's own unwinder has them.
struct Both {
  std::vector<const void*> ours, theirs;
};
[[gnu::noinline]] Both both() {
  Frames frames;
  take_frames(frames);
  void* expected[64];
  const int count = backtrace(expected, 64);
  Both found;
  for (const void* frame : frames.at) {
    if (frame != nullptr) found.ours.push_back(frame);
  }
  found.theirs.assign(expected, expected + count);
  return found;
}

// The first is a place in both(); a sanitizer's backtrace may begin with a call of its own.
void expect_same(const Both& found) {
  ASSERT_GE(found.ours.size(), 2u);
  const auto from = std::find(found.theirs.begin(), found.theirs.end(), found.ours[1]);
  std::vector<const void*> expected(from, found.theirs.end());
  if (expected.size() > kFramesMost - 1) expected.resize(kFramesMost - 1);
  EXPECT_EQ(std::vector<const void*>(found.ours.begin() + 1, found.ours.end()), expected);
}

[[gnu::noinline]] Both deeper(unsigned depth, volatile char* room) {
  volatile char more[100];
  more[0] = room[0];
  Both found = depth == 0 ? both() : deeper(depth - 1, more);
  more[1] = 1;  // no tail call
  return found;
}

class FramesTest : public ::testing::Test {
 protected:
  FramesTest() {
    os::note_stacks(nullptr);  // as the process's start does in a program
    can_ = can_find();
  }
  bool can_ = false;
};

TEST_F(FramesTest, AreThoseOfTheCompilersUnwinder) {
  if (!can_) GTEST_SKIP() << kCannotFind;
  volatile char room[1] = {};
  for (const unsigned depth : {0u, 1u, 5u, 100u}) expect_same(deeper(depth, room));
}

TEST_F(FramesTest, ThroughALibraryThatCallsBack) {
  if (!can_) GTEST_SKIP() << kCannotFind;
  static Both found;
  int values[] = {3, 1, 2};
  qsort(values, 3, sizeof values[0], [](const void* a, const void* b) {
    found = both();
    return *static_cast<const int*>(a) - *static_cast<const int*>(b);
  });
  expect_same(found);
}

TEST_F(FramesTest, ToTheStartOfAThread) {
  if (!can_) GTEST_SKIP() << kCannotFind;
  std::thread([] { expect_same(both()); }).join();
}

// In frames whose size only their run tells.
[[gnu::noinline]] Both with_array(size_t bytes) {
  auto* const array = static_cast<char*>(__builtin_alloca(bytes));
  memset(array, 1, bytes);
  Both found = both();
  asm volatile("" : : "r"(array) : "memory");
  return found;
}

TEST_F(FramesTest, ThroughFramesOfAnySize) {
  if (!can_) GTEST_SKIP() << kCannotFind;
  for (const size_t bytes : {16, 1000, 100000}) expect_same(with_array(bytes));
}

// A stack that leads nowhere ends the walk, and nothing is read beyond what is there.
TEST_F(FramesTest, WhatIsNoStackIsNotFollowed) {
  const size_t page = os::page_bytes();
  auto* const stack =
      static_cast<char*>(mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(stack, MAP_FAILED);
  for (const size_t at : {size_t{0}, page - 64, page - 8}) {
    for (const int byte : {0, 0x41, 0xff}) {
      memset(stack, byte, page);
      os::Registers registers{};
      registers.pc = reinterpret_cast<uintptr_t>(&can_find) + 4;
      for (uint64_t& each : registers.at) each = reinterpret_cast<uintptr_t>(stack + at);
      Frames frames;
      frames_from(registers, frames);
      EXPECT_EQ(frames.at[0], reinterpret_cast<void*>(registers.pc));
      EXPECT_EQ(frames.at[3], nullptr);
    }
  }
  munmap(stack, page);
  os::Registers registers{};
  registers.pc = 4096;
  Frames frames;
  frames_from(registers, frames);
  EXPECT_EQ(frames.at[1], nullptr);
}

// As of a program that hides its headers: it runs on.
int find_module_without_headers() {
  os::Module module{}, hidden{};
  if (!os::find_module(reinterpret_cast<void*>(&can_find), &module) || module.table_end == nullptr) return kCannot;
  auto* const page = const_cast<uint8_t*>(module.start);
  if (mprotect(page, os::page_bytes(), PROT_NONE) != 0) return kCannot;
  const bool found = os::find_module(reinterpret_cast<void*>(&can_find), &hidden);
  mprotect(page, os::page_bytes(), PROT_READ | PROT_EXEC);
  return found && hidden.unwind_table == module.unwind_table && hidden.table_end == nullptr ? kPassed : kFailed;
}

TEST_F(FramesTest, AFileWhoseHeadersCannotBeReadIsFoundAllTheSame) {
  if (!can_) GTEST_SKIP() << kCannotFind;
  const int result = in_child(find_module_without_headers);
  if (result == kCannot) GTEST_SKIP() << "the headers cannot be hidden";
  EXPECT_EQ(result, kPassed);
}

// As of a program that a packer or a patch has damaged: it runs, unless somebody throws.
int take_frames_by_damaged_tables() {
  os::Module module{};
  if (!os::find_module(reinterpret_cast<void*>(&can_find), &module) || module.table_end == nullptr) return kCannot;
  auto* const table = const_cast<uint8_t*>(module.unwind_table);
  constexpr size_t kMost = 200000;
  const size_t bytes = std::min<size_t>(kMost, static_cast<size_t>(module.table_end - table));
  const size_t page = os::page_bytes(), before = reinterpret_cast<uintptr_t>(table) % page;
  if (mprotect(table - before, bytes + before, PROT_READ | PROT_WRITE) != 0) return kCannot;
  const std::vector<uint8_t> good(table, table + bytes);
  uint32_t random = 1;
  const auto next = [&](size_t below) { return (random = random * 1664525 + 1013904223) / 65536 % below; };
  for (unsigned round = 0; round < 3000; ++round) {
    const size_t most = round % 2 == 0 ? bytes / 4 : bytes;  // the index, or all
    for (size_t n = next(60); n != 0; --n) table[next(most)] = static_cast<uint8_t>(next(256));
    if (round % 10 == 0) memset(table + 8, round % 20 == 0 ? 0xff : 0x7f, 4);
    Frames frames;
    take_frames(frames);
    memcpy(table, good.data(), bytes);
  }
  return kPassed;
}

TEST_F(FramesTest, DamagedTablesAreNotFollowedOutOfTheirFile) {
  if (!can_) GTEST_SKIP() << kCannotFind;
  // What a damaged table leads to is of the same file, but need not be an object that AddressSanitizer knows.
  if (kSanitized) GTEST_SKIP() << "under a sanitizer";
  const int result = in_child(take_frames_by_damaged_tables);
  if (result == kCannot) GTEST_SKIP() << "the tables cannot be written";
  EXPECT_EQ(result, kPassed);
}

}  // namespace
