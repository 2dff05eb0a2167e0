// The index over fields, and the hints of one field that lead into it: lowered by who finds nothing while others free
// and purge there. Nothing may stay hidden (large_check looks at every level).
#include <gtest/gtest.h>

#include "space/fields.h"
#include "space/large.h"
#include "space/large_index.h"
#include "space/large_runs.h"
#include "stress/explorer/search.h"
#include "stress/explorer/world.h"

namespace explorer {
namespace {

using namespace folio;

constexpr size_t kUnlimited = ~size_t{0};

// Two fields of one group, in which all is taken but for some live objects of the first, that can be freed.
class IndexScenario {
 public:
  static constexpr unsigned kLive = 2, kGranules = 8, kStale = 20;

  IndexScenario() {
    begin_anew();
    for (char*& object : live_) object = alloc(kGranules);
    field_ = large_place(live_[0]).field;
    while (large_place(alloc(504)).field == field_) {
    }
    second_ = field_->next.load(order::relaxed);
    for (Field* f : {field_, second_}) {
      for (unsigned n = 500; n != 0; n /= 2) {
        while (room(*f, n)) alloc_in(n);
      }
    }
    // As low as can be, but for the first field and the group: who looks has something to lower.
    for (const Room r : {Room::kFree, Room::kReady}) {
      search(r, 1);
      raise_room(*field_, r, kStale);
    }
    world_.save();
    plan.reset = [this] { world_.reset(); };
    plan.verdict = [] { return large_check(process_fields) ? "" : "large_check"; };
  }
  ~IndexScenario() { world_.reset(); }
  IndexScenario(const IndexScenario&) = delete;
  IndexScenario& operator=(const IndexScenario&) = delete;

  Body free(unsigned object) {
    return [this, object] { large_free(live_[object]); };
  }
  // What a search does that finds no run of so many granules: of the field, and of the group.
  static void search(Room r, unsigned granules) {
    FieldPlace at{&process_fields.index};
    while (Field* f = find_room(r, granules, &at)) learn_room(*f, r, granules);
    at = {&process_fields.index};
    find_room(r, granules, &at);
  }
  static Body search_for(Room r, unsigned granules) {
    return [r, granules] { search(r, granules); };
  }
  static Body purge(bool all) {
    return [all] { large_purge(process_fields, all, kUnlimited); };
  }
  void start_without(unsigned object) {
    large_free(live_[object]);
    world_.save();
  }
  Field& field() { return *field_; }
  // As if so many fields more had been entered: those are empty places.
  void enter_others(unsigned number) {
    process_fields.index.used.store(number, order::relaxed);
    world_.save();
  }
  static Body open_another() {
    return [] { alloc(504); };
  }
  static Body walk() {
    return [] {
      unsigned granules = 0;
      for (Field* f = first_field(process_fields); f != nullptr; f = next_field(*f)) granules += f->granules;
      if (granules < kGranules) abort();
    };
  }

  Machine machine;
  Plan plan;

 private:
  static char* alloc(unsigned granules) {
    return static_cast<char*>(large_alloc(process_fields, granules * kGranuleBytes - kLineOffsetMost, 1, false));
  }
  static bool room(Field& f, unsigned granules) {
    unsigned from;
    return find_run(f, granules, 1, &from);
  }
  static void alloc_in(unsigned granules) {
    large_alloc(process_fields, granules * kGranuleBytes - kLineOffsetMost, 1, false, false);
  }

  World world_;
  Field* field_ = nullptr;
  Field* second_ = nullptr;
  char* live_[kLive];
};

TEST(ExploreLargeIndex, RoomIsLoweredWhileItIsFreed) {
  IndexScenario s;
  s.plan.threads = {s.free(0), s.search_for(Room::kFree, 17), s.free(1)};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000}), "large index: room is lowered while two give");
  IndexScenario two;
  two.plan.threads = {two.free(0), two.search_for(Room::kFree, 9), two.search_for(Room::kFree, 4)};
  expect_sound(explore(two.machine, two.plan, {.executions = 3000}), "large index: two lower room, one gives");
}

TEST(ExploreLargeIndex, RoomWithPagesIsLoweredWhileItIsFreedAndPurged) {
  IndexScenario s;
  s.start_without(1);
  s.plan.threads = {s.free(0), s.search_for(Room::kReady, 9), s.purge(true)};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000}), "large index: pages are looked for, freed, purged");
}

TEST(ExploreLargeIndex, MarksAreLoweredWhileOthersAgeAndFree) {
  IndexScenario s;
  s.start_without(1);
  s.plan.threads = {s.free(0), [] { large_age(process_fields); }, s.purge(false)};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000}), "large index: give, age, purge what has aged");
  IndexScenario all;
  all.start_without(1);
  all.plan.threads = {all.free(0), all.purge(true), all.purge(true)};
  expect_sound(explore(all.machine, all.plan, {.executions = 3000}), "large index: give, two purge all");
}

// A field is opened: its group has more room than who has just looked through it knows.
TEST(ExploreLargeIndex, RoomIsLoweredWhileAFieldIsOpened) {
  IndexScenario s;
  s.plan.threads = {IndexScenario::open_another(), s.search_for(Room::kFree, 504), IndexScenario::walk()};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000}), "large index: one opens a field, one lowers room");
  IndexScenario two;
  two.plan.threads = {IndexScenario::open_another(), IndexScenario::open_another(), IndexScenario::walk()};
  expect_sound(explore(two.machine, two.plan, {.executions = 3000}), "large index: two open a field, one walks");
}

// A block of the index is nearly full: the next one is made, while another thread looks through all.
TEST(ExploreLargeIndex, TheNextBlock) {
  IndexScenario s;
  s.enter_others(kBlockFields - 1);
  s.plan.threads = {IndexScenario::open_another(), s.search_for(Room::kFree, 504)};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000}), "large index: one makes the next block, one looks");
  IndexScenario two;
  two.enter_others(kBlockFields - 1);
  two.plan.threads = {IndexScenario::open_another(), IndexScenario::open_another()};
  expect_sound(explore(two.machine, two.plan, {.executions = 3000}), "large index: two make the next block");
}

// What a thread that stopped has hidden comes to light when the field is repaired.
TEST(ExploreLargeIndex, AFieldIsRepaired) {
  IndexScenario s;
  s.plan.threads = {s.free(0), s.search_for(Room::kFree, 1), s.search_for(Room::kReady, 1)};
  s.plan.verdict = [&]() -> std::string {
    raise_all(s.field());
    const unsigned least = (s.field().occupancy(0).load(order::relaxed) & 1) == 0 ? IndexScenario::kGranules : 0;
    FieldPlace at{&process_fields.index};
    if (find_room(Room::kFree, least, &at) != &s.field()) return "the field's room is hidden";
    at = {&process_fields.index};
    return find_marked(Mark::kDirty, &at) == &s.field() ? "" : "the field's pages are hidden";
  };
  expect_sound(vanish(s.machine, s.plan), "large index: give, two look, one of which vanishes");
}

}  // namespace
}  // namespace explorer
