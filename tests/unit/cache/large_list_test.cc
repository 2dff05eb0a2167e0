#include "cache/large_list.h"

#include <algorithm>
#include <random>
#include <vector>

#include "space/pages.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

struct Kept {
  void* object;
  unsigned granules;
};

// Against a plain list, newest last. What it gives is of the fewest granules that do; which of these, the hand decides,
// so the model takes its word; and what goes as the oldest is a place that the hand comes to next.
TEST(LargeList, AsAPlainListWouldFindThem) {
  std::mt19937 random(11);
  for (unsigned turn = 0; turn < 20; ++turn) {
    LargeList list{};
    std::vector<Kept> model;
    char objects[100000];
    size_t next = 0;
    for (unsigned step = 0; step < rounds(4000); ++step) {
      const unsigned n = 1 + random() % LargeList::kGranulesMost;
      if (random() % 2 == 0) {
        if (list.used == ~uint64_t{0}) {
          void* const gone = list.remove_oldest();
          const auto at = std::find_if(model.begin(), model.end(), [&](const Kept& k) { return k.object == gone; });
          ASSERT_NE(at, model.end());
          model.erase(at);
        }
        void* const fresh = &objects[next++ % sizeof objects];
        list.keep(fresh, n);
        model.push_back({fresh, n});
      } else {
        unsigned least = ~0u;
        for (const Kept& k : model) {
          if (k.granules >= n && k.granules - n <= n / 4) least = std::min(least, k.granules);
        }
        void* const found = list.find(n);
        ASSERT_EQ(found == nullptr, least == ~0u) << n;
        if (found != nullptr) {
          const auto at = std::find_if(model.begin(), model.end(), [&](const Kept& k) { return k.object == found; });
          ASSERT_NE(at, model.end()) << "it is handed out once";
          EXPECT_EQ(at->granules, least);
          model.erase(at);
        }
      }
      uint64_t bytes = 0;
      for (const Kept& k : model) bytes += uint64_t{k.granules} << kGranuleShift;
      ASSERT_EQ(list.bytes, bytes);
      ASSERT_EQ(static_cast<size_t>(popcount(list.used)), model.size());
    }
  }
}

TEST(LargeList, TheBudgetIsAPartOfWhatIsResidentWithinBounds) {
  const uint64_t least = kMiB;
  const int64_t there = page_counts.resident.get();
  count_resident(64 * static_cast<int64_t>(kMiB) - there);
  EXPECT_EQ(LargeList::budget_of_one(least, 0), 4 * least) << "no more";
  EXPECT_EQ(LargeList::budget_of_one(least, 4), 2 * least) << "an eighth, divided by the caches";
  EXPECT_EQ(LargeList::budget_of_one(least, 64), least) << "no less";
  count_resident(there - 64 * static_cast<int64_t>(kMiB));
}

}  // namespace
