// Row hints against an array of numbers, and by threads.
#include "space/row_hints.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>
#include <vector>

using folio::RowHints;

namespace {

constexpr unsigned kWords = RowHints::kWords, kMost = RowHints::kMost;

TEST(RowHints, AnswerAsAnArrayDoes) {
  RowHints hints{};
  std::array<unsigned, kWords> plain{};
  std::mt19937 random(1);
  for (unsigned i = 0; i < 20000; ++i) {
    const unsigned w = random() % kWords, length = random() % (2 * kMost);
    if (random() % 2 == 0) {
      hints.raise(w, length);
      plain[w] = std::max(plain[w], std::min(length, kMost));
    } else {
      hints.lower(w, length);
      plain[w] = std::min(plain[w], length);
    }
    ASSERT_EQ(hints.get(w), plain[w]);
    ASSERT_EQ(hints.most(), *std::max_element(plain.begin(), plain.end()));
    const unsigned from = random() % (kWords + 1), least = 1 + random() % kMost;
    const auto* const at =
        std::find_if(plain.begin() + from, plain.end(), [least](unsigned hint) { return hint >= least; });
    ASSERT_EQ(hints.next(from, least), at - plain.begin()) << from << ", " << least;
  }
}

TEST(RowHints, TheEdges) {
  RowHints hints{};
  EXPECT_EQ(hints.most(), 0u);
  EXPECT_EQ(hints.next(0, 1), kWords);
  hints.raise(kWords - 1, kMost + 1);
  EXPECT_EQ(hints.get(kWords - 1), kMost);
  EXPECT_EQ(hints.get(kWords - 2), 0u);
  EXPECT_EQ(hints.next(0, kMost), kWords - 1);
  EXPECT_EQ(hints.next(kWords - 1, kMost), kWords - 1);
  EXPECT_EQ(hints.next(kWords, 1), kWords);
  hints.lower(kWords - 1, kMost - 1);
  EXPECT_EQ(hints.next(0, kMost), kWords);
  EXPECT_EQ(hints.most(), kMost - 1);
}

// Eight hints share a word: what one thread writes must not undo what another one did.
TEST(RowHints, ThreadsDoNotUndoEachOther) {
  constexpr unsigned kThreads = 8;
  RowHints hints{};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&hints, t] {
      for (unsigned i = 0; i < 20000; ++i) {
        hints.lower(t, i % kMost);
        hints.raise(t, i % kMost + 1);
        ASSERT_EQ(hints.get(t), i % kMost + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
