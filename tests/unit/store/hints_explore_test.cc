// What other threads may do between the steps of a take, a give or a purge, done there: at each atomic operation in
// turn.
// Afterwards every folio that has room must be found: no hint is lost.
#include "store/bin.h"
#include "store/check.h"
#include "store/purge.h"
#include "unit/explore_at.h"
#include "unit/store/purge_bins.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr unsigned kPointsMost = 20000;

class HintsExplore : public ::testing::TestWithParam<size_t> {
 protected:
  // Puts the first folio of the bin's first chunk into a state, as if it had always been so.
  void take(unsigned n) {
    for (unsigned i = 0; i < n; ++i) {
      void* object = nullptr;
      ASSERT_EQ(take_objects(process_store, bin_, &object, 1), 1u);
      taken_.push_back(object);
    }
  }
  void give(unsigned n) {
    for (; n != 0 && !taken_.empty(); --n) {
      void* const object = taken_.back();
      taken_.pop_back();  // first: the interruption gives others
      give_objects(bin_, &object, 1, "test");
    }
  }
  Descriptor& chunk() { return *static_cast<Descriptor*>(descriptor_at(first_)); }

  // A finder comes by, with whatever hints there are, and finds them stale or not.
  void peek() {
    for (const Fullness fullness : {kNearlyFull, kPartlyFull, kEmpty}) {
      const int folio = find_folio(chunk(), fullness);
      if (folio < 0) {
        lower_chunk(chunk(), fullness);
        continue;
      }
      const auto number = static_cast<unsigned>(folio);
      const uint64_t word = chunk().occupancy(number).load(order::relaxed);
      if (fullness_of(word, chunk().valid(number)) != fullness) lower_folio(chunk(), number, fullness);
    }
  }

  // Interrupts `body` at each of its points by `others`, each time from a fresh start of `before` objects taken.
  void interrupt(unsigned before, const std::function<void()>& body, const std::function<void()>& others) {
    void* object = nullptr;
    ASSERT_EQ(take_objects(process_store, bin_, &object, 1), 1u);
    first_ = object;
    give_objects(bin_, &object, 1, "test");
    unsigned points = 0;
    for (unsigned point = 1; point < kPointsMost; ++point) {
      take(before);
      if (!explore_at(point, body, others)) break;
      ++points;
      ASSERT_TRUE(check_bin(process_store, bin_)) << "a hint is lost at point " << point;
      give(static_cast<unsigned>(taken_.size()));
      ASSERT_TRUE(check_bin(process_store, bin_)) << point;
    }
    give(static_cast<unsigned>(taken_.size()));
    EXPECT_GT(points, 3u) << "nothing was interrupted";
    EXPECT_LT(points, kPointsMost - 1);
  }

  const BinId bin_ = bin_of(GetParam());
  std::vector<void*> taken_;
  void* first_ = nullptr;
};

// One object of a folio, a unit's whole folio, and a large one.
INSTANTIATE_TEST_SUITE_P(Sizes, HintsExplore, ::testing::Values(64, 2000, 20000));

TEST_P(HintsExplore, TakeWhileTheFolioIsEmptiedAndPeekedAt) {
  // partly -> (looked at) -> empty -> (hint corrected) -> partly again by the take: the class it looked for, but not
  // the hint.
  interrupt(
      1, [&] { take(1); },
      [&] {
        give(1);
        peek();
      });
}

TEST_P(HintsExplore, TakeWhileTheFolioFillsUp) {
  interrupt(
      47, [&] { take(1); },
      [&] {
        take(10);
        peek();
      });
}

TEST_P(HintsExplore, TakeOfTheLastWhileOthersGive) {
  interrupt(
      63, [&] { take(1); },
      [&] {
        give(40);
        peek();
      });
}

TEST_P(HintsExplore, GiveWhileOthersTakeAndPeek) {
  interrupt(
      64, [&] { give(1); },
      [&] {
        take(2);
        peek();
      });
  // Nearly full -> partly full -> (emptied and looked at), and only then is partly full told.
  interrupt(
      48, [&] { give(1); },
      [&] {
        give(47);
        peek();
      });
}

TEST_P(HintsExplore, GiveOfAWholeFolioWhileOthersPeek) {
  interrupt(
      40, [&] { give(40); }, [&] { peek(); });
}

TEST_P(HintsExplore, PurgeWhileOthersTakeAndGive) {
  interrupt(
      30, [&] { purge_bins(process_store, PurgeWhich::kAll, ~size_t{0}); },
      [&] {
        give(20);
        take(30);
        peek();
      });
  interrupt(
      30, [&] { purge_bins(process_store, PurgeWhich::kAll, ~size_t{0}); },
      [&] {
        take(25);
        peek();
        give(1);
      });
}

TEST_P(HintsExplore, PeekWhileOthersTakeAndGive) {
  interrupt(
      20, [&] { peek(); },
      [&] {
        give(20);
        take(50);
        give(1);
      });
}

}  // namespace
