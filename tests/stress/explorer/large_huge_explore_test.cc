// Huge pages for large objects: takers that meet in a chunk of which nothing is resident, beside a purge.
#include <gtest/gtest.h>

#include "os/os.h"
#include "space/fields.h"
#include "space/huge_pace.h"
#include "space/large.h"
#include "space/large_huge.h"
#include "space/pages.h"
#include "stress/explorer/search.h"
#include "stress/explorer/world.h"

namespace explorer {
namespace {

using namespace folio;

constexpr size_t kUnlimited = ~size_t{0};

// One field of which nothing is taken or resident.
class ChunkScenario {
 public:
  static constexpr unsigned kTakers = 2;

  ChunkScenario() {
    begin_anew();
    page_counts.huge_live.add(8 << 20);                          // as in a process that holds more
    for (unsigned i = 0; i < 8; ++i) note_huge_page(100, true);  // so many are trusted
    large_free(large_alloc(process_fields, kGranuleBytes, 1, false));
    large_purge(process_fields, true, kUnlimited);
    others_resident_ = others_resident();
    others_dirty_ = others_dirty();
    world_.save();
    plan.reset = [this] {
      world_.reset();
      for (char*& object : got_) object = nullptr;
    };
    plan.verdict = [this] { return verdict(); };
  }
  ~ChunkScenario() {
    plan.reset();
    page_counts.huge_live.sub(8 << 20);
  }
  ChunkScenario(const ChunkScenario&) = delete;
  ChunkScenario& operator=(const ChunkScenario&) = delete;

  Body allocate(unsigned taker, size_t size, bool zeroed = false) {
    return [this, taker, size, zeroed] {
      got_[taker] = static_cast<char*>(large_alloc(process_fields, size, 1, zeroed));
      if (got_[taker] != nullptr) Machine::write_object(got_[taker]);
    };
  }
  Body grow(unsigned taker, size_t size, size_t more) {
    return [this, taker, size, more] {
      got_[taker] = static_cast<char*>(large_alloc(process_fields, size, 1, false));
      large_resize(got_[taker], more);
    };
  }
  static Body purge() {
    return [] { large_purge(process_fields, true, kUnlimited); };
  }

  Machine machine;
  Plan plan;

 private:
  std::string verdict() {
    char* ends[kTakers];
    for (unsigned i = 0; i < kTakers; ++i) {
      const LargePlace place = large_place(got_[i]);
      if (got_[i] == nullptr || !place.starts(got_[i])) return "an object is not found";
      ends[i] = got_[i] + place.usable;
    }
    if (got_[0] < ends[1] && got_[1] < ends[0]) return "two objects overlap";
    if (!large_check(process_fields)) return "large_check";
    if (others_resident() != others_resident_ || others_dirty() != others_dirty_) return "the accounts are off";
    size_t foreseen = 0;
    for (Field* f = first_field(process_fields); f != nullptr; f = next_field(*f)) {
      foreseen += static_cast<size_t>(__builtin_popcount(f->foreseen.load(order::relaxed)));
    }
    constexpr size_t kMost = kForeseenMost / kClusterBytes;
    const bool exact = foreseen_large.has_room(kMost - foreseen) && !foreseen_large.has_room(kMost - foreseen + 1);
    return exact ? "" : "foreseen is off";
  }

  // What is counted beside the fields: it stays as it was.
  static int64_t others_resident() {
    return page_counts.resident.get() - static_cast<int64_t>(large_stats(process_fields).resident);
  }
  static int64_t others_dirty() {
    return page_counts.dirty.get() - static_cast<int64_t>(large_stats(process_fields).dirty);
  }

  World world_;
  int64_t others_resident_, others_dirty_;
  char* got_[kTakers] = {};
};

TEST(ExploreLargeHuge, TakeAgainstTakeInOneChunk) {
  ChunkScenario s;
  s.plan.threads = {s.allocate(0, 300 << 10), s.allocate(1, 500 << 10)};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000, .random = 600}), "large: two ask for one huge page");
}

TEST(ExploreLargeHuge, TakeZeroesPurge) {
  ChunkScenario s;
  s.plan.threads = {s.allocate(0, 300 << 10), s.allocate(1, 40 << 10, true), ChunkScenario::purge()};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000, .random = 600}), "large: huge page, zeroes, purge");
}

TEST(ExploreLargeHuge, GrowthIntoTheNextChunk) {
  ChunkScenario s;
  s.plan.threads = {s.grow(0, 1 << 20, 3 << 20), s.allocate(1, 600 << 10), ChunkScenario::purge()};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000, .random = 600}), "large: growth, take, purge");
}

}  // namespace
}  // namespace explorer
