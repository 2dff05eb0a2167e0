// What other threads may do between the steps of a take, a give, a resize or a purge, done there: at each atomic
// operation in turn. Afterwards fields, accounts and hints must hold, and nobody's bytes be another's.
#include "os/os.h"
#include "space/fields.h"
#include "space/large.h"
#include "unit/explore_at.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr unsigned kPointsMost = 20000;
constexpr size_t kNoLimit = ~size_t{0};
const size_t step = std::max(os::page_bytes(), kGranuleBytes);

// Of 5 neighbours in the first field, 30 steps each, so that they lie in several words; behind them most is taken.
class LargeExplore : public ::testing::Test {
 protected:
  static constexpr unsigned kObjects = 5, kSteps = 30;

  LargeExplore() { large_purge(process_fields, true, kNoLimit); }
  ~LargeExplore() override {
    free_all();
    large_purge(process_fields, true, kNoLimit);
    EXPECT_EQ(delta_.resident(), 0);
    EXPECT_EQ(delta_.dirty(), 0);
  }
  char* alloc(unsigned steps) {
    auto* const object = static_cast<char*>(large_alloc(process_fields, steps * step - kLineOffsetMost, 1, false));
    if (object != nullptr) live_.push_back(object);
    return object;
  }
  void release(char* object) {
    const auto at = std::find(live_.begin(), live_.end(), object);
    if (at == live_.end()) return;
    live_.erase(at);  // first: an interruption looks at them
    EXPECT_TRUE(large_free(object));
  }
  void free_all() {
    while (!live_.empty()) release(live_.back());
  }
  void check(unsigned point) {
    ASSERT_TRUE(large_check(process_fields)) << "at point " << point;
    const LargeStats stats = large_stats(process_fields);
    ASSERT_EQ(delta_.resident(), static_cast<int64_t>(stats.resident)) << "at point " << point;
    ASSERT_EQ(delta_.dirty(), static_cast<int64_t>(stats.dirty)) << "at point " << point;
    ASSERT_EQ(stats.objects, live_.size()) << "at point " << point;
    std::vector<std::pair<char*, char*>> places;
    for (char* object : live_) {
      const LargePlace place = large_place(object);
      ASSERT_TRUE(place.starts(object)) << "at point " << point;
      places.emplace_back(object, object + place.usable);
      object[0] = object[place.usable - 1] = 1;
    }
    std::sort(places.begin(), places.end());
    for (size_t i = 1; i < places.size(); ++i) ASSERT_LE(places[i - 1].second, places[i].first) << point;
  }

  // Interrupts `body` at each of its points by `others`, each time from the same start.
  void interrupt(const std::function<void()>& body, const std::function<void()>& others) {
    unsigned points = 0;
    for (unsigned point = 1; point < kPointsMost; ++point) {
      for (char*& object : row_) object = alloc(kSteps);
      const bool ran = explore_at(point, body, others);
      check(point);
      if (HasFatalFailure()) return;
      free_all();
      check(point);
      if (HasFatalFailure() || !ran) break;
      ++points;
      if (point % 3 == 0) large_purge(process_fields, true, kNoLimit);
    }
    EXPECT_GT(points, 3u) << "nothing was interrupted";
    EXPECT_LT(points, kPointsMost - 1);
  }

  char* row_[kObjects] = {};
  std::vector<char*> live_;
  PageDelta delta_;
};

TEST_F(LargeExplore, TakeWhileOthersTake) {
  interrupt([&] { alloc(40); }, [&] { alloc(50); });
  interrupt(
      [&] {
        release(row_[1]);
        release(row_[2]);
        alloc(55);
      },
      [&] { alloc(20); });
}

TEST_F(LargeExplore, TakeWhileOthersGive) {
  interrupt(
      [&] {
        release(row_[1]);
        alloc(60);
      },
      [&] { release(row_[2]); });
}

// More than a word's granules: what the search has seen begin may be gone when it looks how long it is.
TEST_F(LargeExplore, TakeOfManyWhileOthersTake) {
  interrupt(
      [&] {
        for (char* object : row_) release(object);
        alloc(70);
      },
      [&] { alloc(90); });
}

TEST_F(LargeExplore, TakeWhileOthersPurge) {
  interrupt(
      [&] {
        release(row_[1]);
        alloc(30);
      },
      [&] { large_purge(process_fields, true, kNoLimit); });
}

TEST_F(LargeExplore, PurgeWhileOthersTakeAndGive) {
  interrupt(
      [&] {
        release(row_[1]);
        large_purge(process_fields, true, kNoLimit);
      },
      [&] {
        alloc(20);
        release(row_[3]);
        alloc(25);
      });
}

TEST_F(LargeExplore, PurgeWhileOthersPurge) {
  interrupt(
      [&] {
        release(row_[1]);
        release(row_[3]);
        large_purge(process_fields, true, kNoLimit);
      },
      [&] { large_purge(process_fields, true, kNoLimit); });
}

TEST_F(LargeExplore, AgeWhileOthersTakeAndPurge) {
  interrupt(
      [&] {
        release(row_[1]);
        large_age(process_fields);
        large_purge(process_fields, false, kNoLimit);
      },
      [&] {
        alloc(10);
        large_age(process_fields);
        large_purge(process_fields, false, kNoLimit);
      });
}

TEST_F(LargeExplore, ResizeWhileOthersTake) {
  interrupt(
      [&] {
        release(row_[1]);
        large_resize(row_[0], 50 * step);
        large_resize(row_[0], 10 * step);
      },
      [&] { alloc(25); });
}

TEST_F(LargeExplore, ResizeWhileOthersPurge) {
  interrupt(
      [&] {
        release(row_[1]);
        large_resize(row_[0], 50 * step);
        large_resize(row_[0], 10 * step);
      },
      [&] { large_purge(process_fields, true, kNoLimit); });
}

// Misuse: whoever is first, no granule has two owners.
TEST_F(LargeExplore, ResizeOfWhatOthersFree) {
  for (const size_t size : {50 * step, 10 * step}) {
    interrupt(
        [&] {
          release(row_[1]);
          large_resize(row_[0], size);
        },
        [&] { release(row_[0]); });
  }
}

// The hint goes down after a search that failed; what is freed meanwhile must be found.
TEST_F(LargeExplore, TheHintOfTheLongestRunHidesNothing) {
  std::vector<char*> fillers;
  const auto body = [&] {
    // No field has so much, so a new one opens or the hint of this one is lowered.
    if (char* object = alloc(static_cast<unsigned>(kLargeMost / step))) release(object);
  };
  Field* const first = process_fields.first.load(order::acquire);
  const size_t reserved = large_stats(process_fields).reserved;
  (void)first;
  for (unsigned others = 0; others < 3; ++others) {
    interrupt(body, [&, others] {
      if (others != 1) release(row_[1]);
      if (others != 0) release(row_[2]);
      if (others == 2) alloc(45);
    });
  }
  EXPECT_LE(large_stats(process_fields).reserved, reserved + 4 * kFieldBytesMost);
}

}  // namespace
