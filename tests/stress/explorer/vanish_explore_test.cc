// A thread stops forever, at each of its points in turn: the others finish, and what is lost with it is bounded.
//
// Lost means: objects whose bits are set though nobody has them (what it had just taken, was about to give, or had
// claimed for a purge), and free objects that no hint leads to ("unseen": what it was about to raise a hint for). The
// latter must come to light again while the bin grows.
#include <gtest/gtest.h>

#include "stress/explorer/bin_scenario.h"

namespace explorer {
namespace {

constexpr size_t kFolioUnits = 1088, kPageObjects = 4096;

void expect_little_lost(const char* what, size_t size, std::vector<unsigned> shape,
                        std::vector<std::vector<Op>> threads, unsigned most_taken_lost, unsigned most_unseen,
                        bool purged = false) {
  BinScenario scenario(size, std::move(shape), std::move(threads), purged);
  scenario.most_taken_lost = most_taken_lost;
  scenario.most_unseen = most_unseen;
  expect_sound(vanish(scenario.machine(), scenario.plan()), what);
  printf("    lost at most: %u objects taken (bound %u), %u objects unseen (bound %u)\n", scenario.worst_taken_lost,
         most_taken_lost, scenario.worst_unseen, most_unseen);
}

TEST(Vanish, InTakeAndGive) {
  expect_little_lost("take; take", kFolioUnits, {59, 0}, {{take(8)}, {take(8)}}, 8, 64);
  expect_little_lost("take; give", kFolioUnits, {47, 3}, {{take(1)}, {give(0, 1)}, {give(1, 3)}}, 3, 64);
  expect_little_lost("give; give; take", kFolioUnits, {64, 2}, {{give(0, 20)}, {give(1, 2)}, {take(2)}}, 20, 64);
  expect_little_lost("two give to the folio that a third fills", kFolioUnits, {63, 64},
                     {{take(1)}, {give(1, 1)}, {give(1, 1)}}, 1, 64);
}

// The bits above a chunk are about many folios: one that is being lowered may hide all those that are raised meanwhile.
TEST(Vanish, InLoweringAChunk) {
  expect_little_lost("a chunk's bit; give; give", kFolioUnits, {47, 64, 64},
                     {{take(17), take(1)}, {give(1, 40)}, {give(2, 40)}}, 40, 80);
}

TEST(Vanish, InOpenChunk) {
  expect_little_lost("open; open", kPageObjects, {}, {{take_any(2)}, {take_any(2)}}, 2, 128);
}

TEST(Vanish, InPurge) {
  expect_little_lost("purge; take", kFolioUnits, {0, 0}, {{purge()}, {take(1)}}, 128, 128);
  expect_little_lost("purge; give; take", kPageObjects, {5}, {{purge()}, {give(0, 5)}}, 128, 64);
}

TEST(Vanish, InTouchingPagesAhead) {
  std::vector<unsigned> shape(32, folio::kFolioObjects);  // as much below as lets two pages come at once
  shape.insert(shape.end(), 3, 0);
  expect_little_lost("ahead; take", 64, std::move(shape), {{take(1)}, {take(1)}}, 65, 128, true);
}

}  // namespace
}  // namespace explorer
