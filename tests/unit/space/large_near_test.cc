#include "space/large_near.h"

#include <random>

#include "space/large_runs.h"
#include "unit/space/large_objects.h"

namespace {

// One thread, as far as it matters here.
struct Thread {
  std::set<char*>& live;
  LargeNear near{};
  char* take(size_t steps, bool zeroed = false) {
    const size_t size = steps * step - kLineOffsetMost;
    return *live.insert(static_cast<char*>(large_alloc(process_fields, size, 1, zeroed, true, &near))).first;
  }
  void give(char* object) {
    live.erase(object);
    ASSERT_NE(large_park(object), 0u);
    ASSERT_TRUE(large_give(object, &near));
  }
};

class Near : public Large {
 protected:
  ~Near() override {
    for (char* object : live_) EXPECT_TRUE(large_free(object));
  }
  std::set<char*> live_;
  Thread one_{live_}, other_{live_};
};

TEST_F(Near, AThreadGetsWhatItGaveLast) {
  char* const low = one_.take(20);
  char* const high = other_.take(20);
  ASSERT_LT(low, high);
  one_.give(low);
  other_.give(high);
  EXPECT_EQ(other_.take(20), high) << "not the lowest";
  EXPECT_EQ(one_.take(20), low);
}

TEST_F(Near, NeighboursThatItGaveServeTogetherAndAsParts) {
  char* const before = alloc_steps(40);  // lower, and free from here on
  char* const a = one_.take(20);
  char* const b = one_.take(20);
  char* const c = one_.take(20);
  ASSERT_EQ(start_of(c), start_of(b) + 20 * step);
  large_free(before);
  one_.give(b);
  one_.give(a);
  one_.give(c);
  char* const all = one_.take(60);
  EXPECT_EQ(start_of(all), start_of(a));
  one_.give(all);
  char* const first = one_.take(30);
  EXPECT_EQ(start_of(first), start_of(a));
  char* const second = one_.take(30);
  EXPECT_EQ(start_of(second), start_of(a) + 30 * step);
  EXPECT_EQ(start_of(one_.take(40)), start_of(before)) << "nothing is left there";
  expect_exact_accounts();
}

TEST_F(Near, NotWhatIsTooLargeOrTooSmallForItAndNotAfterwards) {
  for (const size_t steps : {41u, 9u}) {
    char* const before = alloc_steps(60);
    char* const a = one_.take(40);
    large_free(before);
    one_.give(a);
    char* const wrong = one_.take(steps);
    EXPECT_EQ(start_of(wrong), start_of(before)) << steps;
    EXPECT_EQ(one_.near.field, nullptr);
    one_.give(wrong);
  }
}

TEST_F(Near, NotWhatOthersHaveTaken) {
  char* const a = one_.take(20);
  one_.give(a);
  char* const theirs = alloc_steps(20);
  ASSERT_EQ(theirs, a);
  char* const mine = one_.take(20);
  EXPECT_NE(mine, a);
  expect_exact_accounts();
  large_free(theirs);
}

TEST_F(Near, NotWhatWasPurged) {
  char* const before = alloc_steps(20);
  char* const a = one_.take(20);
  memset(a, 1, 20 * step - kLineOffsetMost);
  one_.give(a);
  large_purge(process_fields, true, kNoLimit);
  memset(before, 1, 20 * step - kLineOffsetMost);
  large_free(before);
  EXPECT_EQ(one_.take(20), before);
}

// It takes an object that is in the processor's cache, not one that was allocated long ago or by another thread.
TEST_F(Near, OnlyWhatItTookLately) {
  char* const before = alloc_steps(20);
  char* const old = one_.take(20);
  std::vector<char*> later;
  for (unsigned i = 0; i < LargeNear::kTaken; ++i) later.push_back(one_.take(20));
  large_free(before);
  one_.give(old);
  EXPECT_EQ(one_.near.field, nullptr);
  other_.give(later.back());
  EXPECT_EQ(other_.near.field, nullptr);
  one_.give(later[0]);
  EXPECT_EQ(one_.take(20), later[0]);
}

// A result that is kept does not lie in the room of a larger object that comes and goes.
TEST_F(Near, NotWhereItKeepsWhatLiesThere) {
  constexpr unsigned kKept = 100, kLarger = 68, kResult = 18;
  std::minstd_rand random(7);
  std::vector<char*> kept(kKept);
  for (char*& result : kept) result = one_.take(kResult);
  for (unsigned turn = 0; turn < 1000; ++turn) {
    char*& result = kept[random() % kKept];
    one_.give(result);
    one_.give(one_.take(kLarger));
    result = one_.take(kResult);
  }
  EXPECT_LE(static_cast<uint64_t>(delta_.resident()), kKept * kResult * step * 5 / 4);
}

// An object that is given lately does not end it.
TEST_F(Near, GoesOnWithWhatComesAndGoes) {
  char* const low = alloc_steps(20);
  one_.take(20);
  for (unsigned turn = 0; turn < 100; ++turn) {
    char* const a = one_.take(20);
    char* const b = one_.take(20);
    one_.give(b);
    one_.give(a);
    if (turn == 0) large_free(low);
    if (turn != 0) EXPECT_NE(a, low);
    if (turn != 0) EXPECT_NE(b, low);
  }
}

TEST_F(Near, ZeroedMeansZero) {
  char* const a = one_.take(20);
  const size_t bytes = 20 * step - kLineOffsetMost;
  memset(a, 1, bytes);
  one_.give(a);
  char* const again = one_.take(20, true);
  ASSERT_EQ(again, a);
  EXPECT_TRUE(all_zero(again, bytes));
}

// A signal handler may have changed it in the middle of a call.
TEST_F(Near, WhateverItSaysIsChecked) {
  char* const a = one_.take(20);
  one_.give(a);
  Field* const f = one_.near.field;
  ASSERT_NE(f, nullptr);
  const LargeNear wrong[] = {
      {f, f->granules - 10, f->granules + 10, {}, 0, 0}, {f, 30, 10, {}, 0, 0}, {f, 7, 7, {}, 0, 200}};
  for (LargeNear near : wrong) {
    unsigned from;
    EXPECT_EQ(near_take(near, 10, 1, &from), nullptr);
    EXPECT_EQ(near.field, nullptr);
    near_note_taken(near, a, false);
  }
}

}  // namespace
