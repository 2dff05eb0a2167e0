// Searches in one field, against a walk over its granules.
#include "space/large_runs.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "unit/support.h"

using namespace folio;

namespace {

constexpr unsigned kGranules = 1024;

class LargeRuns : public ::testing::Test {
 protected:
  LargeRuns() : memory_(Field::bytes_for(kGranules) / 8 + 1), field_(*reinterpret_cast<Field*>(memory_.data())) {
    field_.granules = kGranules;
  }

  // Runs of up to `most` granules that are taken, or free and there, or free and not there.
  void fill(std::mt19937& random, unsigned most) {
    for (unsigned g = 0; g < kGranules;) {
      const unsigned kind = random() % 3;
      for (unsigned n = 1 + random() % most; n != 0 && g < kGranules; --n, ++g) put(g, kind == 0, kind != 2);
    }
    field_.dirty.store(~uint64_t{0}, order::relaxed);
    for (unsigned w = 0; w < kGranules / 64; ++w) field_.ready_rows.raise(w, RowHints::kMost);
  }
  void put(unsigned g, bool taken, bool resident) {
    const uint64_t bit = uint64_t{1} << g % 64;
    Field::Word &occupancy = field_.occupancy(g / 64), &there = field_.resident(g / 64);
    occupancy.store((occupancy.load(order::relaxed) & ~bit) | (taken ? bit : 0), order::relaxed);
    there.store((there.load(order::relaxed) & ~bit) | (resident ? bit : 0), order::relaxed);
  }
  bool free(unsigned g, bool there) {
    return (field_.occupancy(g / 64).load(order::relaxed) >> g % 64 & 1) == 0 &&
           (!there || (field_.resident(g / 64).load(order::relaxed) >> g % 64 & 1) != 0);
  }
  bool fits(unsigned from, unsigned count, bool there) {
    if (from + count > kGranules) return false;
    for (unsigned g = from; g < from + count; ++g) {
      if (!free(g, there)) return false;
    }
    return true;
  }
  // The lowest place, or kGranules.
  unsigned lowest(unsigned count, unsigned step, bool there) {
    for (unsigned g = 0; g < kGranules; g += step) {
      if (fits(g, count, there)) return g;
    }
    return kGranules;
  }

  std::vector<uint64_t> memory_;
  Field& field_;
};

constexpr unsigned kCounts[] = {1, 2, 3, 5, 8, 31, 63, 64, 65, 100, 200};
constexpr unsigned kSteps[] = {1, 2, 4, 16, 32, 64, 128};

TEST_F(LargeRuns, FindWhatAWalkFinds) {
  unsigned found = 0, none = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    fill(random, 1u << (1 + seed % 9));
    for (const unsigned count : kCounts) {
      for (const unsigned step : kSteps) {
        unsigned from = 0;
        const unsigned ready = lowest(count, step, true);
        const bool has_ready = find_ready_run(field_, count, step, &from);
        ASSERT_EQ(has_ready, ready != kGranules) << "seed " << seed << ", " << count << " at " << step;
        if (has_ready) ASSERT_EQ(from, ready) << "seed " << seed << ", " << count << " at " << step;
        const bool has = find_run(field_, count, step, &from);
        ASSERT_EQ(has, lowest(count, step, false) != kGranules) << "seed " << seed << ", " << count << " at " << step;
        ++(has ? found : none);
        if (!has) continue;
        ASSERT_EQ(from % step, 0u);
        ASSERT_TRUE(fits(from, count, false)) << "seed " << seed << ", " << count << " at " << step;
      }
    }
  }
  EXPECT_GT(found, 500u);
  EXPECT_GT(none, 500u);
}

// What the searches lower stays enough: small ones after large ones.
TEST_F(LargeRuns, WhatASearchLowersHidesNothing) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    fill(random, 1u << (1 + seed % 9));
    for (unsigned count = 200; count != 0; --count) {
      unsigned from = kGranules;
      const unsigned ready = lowest(count, 1, true);
      ASSERT_EQ(find_ready_run(field_, count, 1, &from), ready != kGranules) << "seed " << seed << ", " << count;
      ASSERT_TRUE(ready == kGranules || from == ready) << "seed " << seed << ", " << count << " at " << from;
    }
  }
}

// What misses fewest pages, then the shortest, then the lowest: also where only a part of a free run is aligned.
TEST_F(LargeRuns, TheBestPlaceIsThatWithTheFewestPagesToTouch) {
  for (unsigned g = 0; g < kGranules; ++g) put(g, true, true);
  for (unsigned g = 98; g < 110; ++g) put(g, false, g >= 104);
  for (unsigned g = 201; g < 209; ++g) put(g, false, true);
  unsigned from = 0;
  ASSERT_TRUE(find_run(field_, 4, 4, &from));
  EXPECT_EQ(from, 204u) << "the shorter one of two that are there";
  ASSERT_TRUE(find_run(field_, 8, 4, &from));
  EXPECT_EQ(from, 100u) << "the only one with room";
  ASSERT_TRUE(find_run(field_, 8, 1, &from));
  EXPECT_EQ(from, 201u);
  EXPECT_FALSE(find_run(field_, 8, 16, &from));
}

}  // namespace
