// The depot while others go on.
#include <gtest/gtest.h>

#include "cache/depot.h"
#include "unit/cache/magazines.h"
#include "unit/explore_at.h"

using namespace folio;
using namespace folio_test;

namespace {

constinit Depot depot{};

// Others push at each of its steps, faster than it drains: it takes what was there when it came by, and ends.
TEST(DepotExplore, ATrimEndsWhileOthersPush) {
  constexpr unsigned kPushesMost = 20000;
  const BinId bin = bin_of(64);
  depot_set_shared(depot);
  const auto push = [&] { depot_push(depot, bin, bundle_of(bin, 1, 2), 0, "test"); };
  push();
  unsigned pushes = 0;
  std::function<void()> again = [&] {
    if (++pushes > kPushesMost) return;
    push();
    explore_countdown = 7;  // not at each one: a compare_exchange must come through
  };
  explore_at(
      1, [] { depot_trim(depot, true); }, again);
  explore_countdown = 0;
  EXPECT_LE(pushes, kPushesMost) << "it drained what others pushed meanwhile";
  EXPECT_GE(pushes, 10u);
  depot_trim(depot, true);
  depot_trim(depot, true);
  EXPECT_EQ(depot_objects(depot, bin), 0u);
}

}  // namespace
