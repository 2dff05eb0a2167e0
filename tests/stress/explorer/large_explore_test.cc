// Fields of large objects: runs that overlap, taken, given, purged and resized at once; the hint of the longest run.
#include <gtest/gtest.h>

#include "base/bits.h"
#include "cache/cpu_cache.h"
#include "os/os.h"
#include "space/fields.h"
#include "space/large.h"
#include "space/pages.h"
#include "stress/explorer/search.h"
#include "stress/explorer/world.h"
#include "unit/scripted_cpu.h"

namespace explorer {
namespace {

using namespace folio;

constexpr size_t kUnlimited = ~size_t{0};

// One field in which all is taken but a hole of kHole granules around the border of two words, in which objects live.
class LargeScenario {
 public:
  static constexpr unsigned kLive = 3;

  LargeScenario() {
    begin_anew();
    // Before the hole, in it, behind it.
    const unsigned steps[kLive + 2] = {50, 8, 12, 8, 0};
    before_ = alloc(steps[0]);
    for (unsigned i = 0; i < kLive; ++i) live_[i] = alloc(steps[i + 1]);
    field_ = large_place(before_).field;
    // The rest, so that no run but the hole's is free.
    while (count_free() != 0) alloc(count_free() < 500 ? count_free() : 500);
    others_resident_ = others_resident();
    others_dirty_ = others_dirty();
    world_.save();
    plan.reset = [this] { reset(); };
    plan.verdict = [this] { return verdict(); };
  }
  ~LargeScenario() { reset(); }
  LargeScenario(const LargeScenario&) = delete;
  LargeScenario& operator=(const LargeScenario&) = delete;

  static char* alloc(unsigned granules) {
    return static_cast<char*>(large_alloc(process_fields, granules * kGranuleBytes - kLineOffsetMost, 1, false));
  }
  Body allocate(unsigned thread, unsigned granules) {
    return [this, thread, granules] {
      got_[thread] = alloc(granules);
      if (got_[thread] != nullptr) Machine::write_object(got_[thread]);
    };
  }
  // The same by way of the CPU cache.
  Body allocate_cached(unsigned thread, unsigned granules) {
    return [this, thread, granules] {
      const size_t size = granules * kGranuleBytes - kLineOffsetMost;
      void* const parked = cpu_cache_get_large(process_caches, granules);
      got_[thread] = parked == nullptr ? alloc(granules) : static_cast<char*>(large_unpark(parked, size, 1, false));
      if (got_[thread] != nullptr) Machine::write_object(got_[thread]);
    };
  }
  Body free(unsigned object) {
    return [this, object] { note_freed(object, [&] { return large_free(live_[object]); }); };
  }
  Body free_cached(unsigned object) {
    return [this, object] {
      note_freed(object, [&] {
        const unsigned granules = large_park(live_[object]);
        if (granules != 0) cpu_cache_put_large(process_caches, live_[object], granules);
        return granules != 0;
      });
    };
  }
  Body resize(unsigned object, unsigned granules) {
    return [this, object, granules] { large_resize(live_[object], granules * kGranuleBytes - kLineOffsetMost); };
  }
  static Body purge() {
    return [] { large_purge(process_fields, true, kUnlimited); };
  }
  // What is free from the start: the object, and it is resident.
  void start_without(unsigned object) {
    large_free(live_[object]);
    gone_ |= 1u << object;
    world_.save();
  }

  bool is_live(unsigned object) const { return large_place(live_[object]).starts(live_[object]); }
  // Fields that were opened since, from this one on.
  static void close_fields(Field* f) {
    while (f != nullptr) {
      Field* const next = f->next.load(order::relaxed);
      const size_t bytes = size_t{f->granules} << kGranuleShift;
      char* const base = f->base;
      for (size_t at = 0; at < bytes; at += kChunkBytes) {
        set_chunk(window_of(base + at), base + at, nullptr, kCodeNone);
      }
      os::unreserve(base, bytes);
      f = next;
    }
  }

  Machine machine;
  Plan plan;
  unsigned freed[kLive] = {};
  bool writes = true;  // to what is freed, just before; not where two free the same
  bool quiet = true;   // every thread ends: what is left behind is exact

 private:
  template <class Free>
  void note_freed(unsigned object, Free&& body) {
    {
      const Ghost ghost;
      freeing_ |= 1u << object;
    }
    if (writes) Machine::write_object(live_[object]);
    const bool done = body();
    const Ghost ghost;
    if (done) ++freed[object];
    freeing_ &= ~(1u << object);
  }

  unsigned count_free() {
    unsigned taken = 0;
    for (unsigned w = 0; w < field_->words(); ++w) taken += popcount(field_->occupancy(w).load(order::relaxed));
    return field_->granules - taken;
  }

  void reset() {
    close_fields(field_->next.load(order::relaxed));
    world_.reset();
    for (char*& object : got_) object = nullptr;
    for (unsigned& n : freed) n = 0;
    freeing_ = 0;
  }

  std::string verdict() {
    for (unsigned i = 0; i < kLive; ++i) {
      if (freed[i] + (gone_ >> i & 1) > 1) return "freed twice";
    }
    struct Span {
      char* start;
      char* end;
    };
    std::vector<Span> spans;
    const auto add = [&](char* object) {
      const LargePlace place = large_place(object);
      if (!place.starts(object)) return false;
      spans.push_back({object, object + place.usable});
      return true;
    };
    bool found = add(before_);
    for (unsigned i = 0; i < kLive; ++i) {
      if (freed[i] == 0 && ((gone_ | freeing_) >> i & 1) == 0) found = add(live_[i]) && found;
    }
    for (char* object : got_) {
      if (object != nullptr) found = add(object) && found;
    }
    if (!found) return "a live object is not found";
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
    for (size_t i = 1; i < spans.size(); ++i) {
      if (spans[i - 1].end > spans[i].start) return "two objects overlap";
    }
    if (!quiet) return comes_to_light() ? "" : "a free run stays hidden";
    cpu_caches_trim(process_caches, true);
    if (!large_check(process_fields)) return "large_check";
    return others_resident() == others_resident_ && others_dirty() == others_dirty_ ? "" : "the accounts are off";
  }

  // Whatever hints a thread left that stopped, the longest free run is found by as many searches as there are fields.
  static bool comes_to_light() {
    unsigned longest = 0, number = 0;
    for (Field* f = process_fields.first.load(order::relaxed); f != nullptr;
         f = f->next.load(order::relaxed), ++number) {
      for (unsigned g = 0, run = 0; g < f->granules; ++g) {
        run = (f->occupancy(g / 64).load(order::relaxed) >> g % 64 & 1) != 0 ? 0 : run + 1;
        longest = std::max(longest, run);
      }
    }
    const size_t size = (size_t{longest} << kGranuleShift) - kLineOffsetMost;
    for (unsigned i = 0; longest != 0 && i <= number; ++i) {
      if (large_alloc(process_fields, size, 1, false, false) != nullptr) return true;
    }
    return longest == 0;
  }

  // What is counted beside the fields: it stays as it was.
  static int64_t others_resident() {
    return page_counts.resident.get() - static_cast<int64_t>(large_stats(process_fields).resident);
  }
  static int64_t others_dirty() {
    return page_counts.dirty.get() - static_cast<int64_t>(large_stats(process_fields).dirty);
  }

  World world_;
  Field* field_ = nullptr;
  char* before_ = nullptr;
  char* live_[kLive];
  char* got_[Machine::kThreadsMost] = {};
  unsigned gone_ = 0;
  unsigned freeing_ = 0;  // by a thread that is in between, or vanished there
  int64_t others_resident_, others_dirty_;
};

TEST(ExploreLarge, TakeAgainstTakeOfOverlappingRuns) {
  LargeScenario s;
  s.start_without(0);
  s.start_without(1);
  s.start_without(2);
  s.plan.threads = {s.allocate(0, 20), s.allocate(1, 16), s.allocate(2, 10)};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000, .random = 600}), "large: three take in one hole");
}

TEST(ExploreLarge, GiveTakePurge) {
  LargeScenario s;
  s.start_without(1);
  s.plan.threads = {s.free(0), s.allocate(1, 18), LargeScenario::purge()};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000, .random = 600}), "large: give, take, purge");
}

TEST(ExploreLarge, PurgeAgainstPurge) {
  LargeScenario s;
  s.start_without(0);
  s.start_without(2);
  s.plan.threads = {LargeScenario::purge(), LargeScenario::purge(), s.free(1)};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000, .random = 600}), "large: two purge, one gives");
}

TEST(ExploreLarge, FreedTwiceAtOnce) {
  LargeScenario s;
  // Nobody takes meanwhile: the second free could be one of the taker's object.
  s.writes = false;
  s.plan.threads = {s.free(1), s.free(1)};
  const auto sound = s.plan.verdict;
  s.plan.verdict = [&]() -> std::string { return s.freed[1] != 1 ? "not exactly one free succeeded" : sound(); };
  expect_sound(explore(s.machine, s.plan, {.preemptions = 4, .executions = 3000}), "large: one freed twice at once");
}

TEST(ExploreLarge, ResizeAgainstTakeAndPurge) {
  LargeScenario s;
  s.start_without(1);
  s.plan.threads = {s.resize(0, 16), s.allocate(1, 8), LargeScenario::purge()};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000, .random = 600}), "large: grow, take, purge");
  LargeScenario shrink;
  shrink.plan.threads = {shrink.resize(1, 4), shrink.allocate(1, 8), shrink.free(0)};
  expect_sound(explore(shrink.machine, shrink.plan, {.executions = 3000, .random = 600}), "large: shrink, take, give");
}

// A search that fails lowers the hint while what it wanted is freed: nothing may stay hidden (large_check knows).
TEST(ExploreLarge, TheHintOfTheLongestRun) {
  LargeScenario s;
  s.plan.threads = {s.allocate(0, 20), s.free(0), s.free(1)};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000, .random = 600}), "large: a search fails while two give");
}

TEST(ExploreLarge, ASearchFailsWhileAPurgeHoldsGranules) {
  LargeScenario s;
  s.start_without(0);
  s.start_without(1);
  s.plan.threads = {s.allocate(0, 18), LargeScenario::purge()};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000}), "large: a search fails while another one purges");
}

// Misuse: whoever is first, no granule has two owners.
TEST(ExploreLarge, ResizedAndFreedAtOnce) {
  LargeScenario s;
  s.writes = false;
  s.plan.threads = {s.resize(1, 4), s.free(1)};
  const auto sound = s.plan.verdict;
  s.plan.verdict = [&]() -> std::string {
    return s.freed[1] == 1 && s.is_live(1) ? "it lives on after its free" : sound();
  };
  expect_sound(explore(s.machine, s.plan, {.preemptions = 4}), "large: resized and freed at once");
}

// No field is there yet: each opens one.
TEST(ExploreLarge, FirstFields) {
  begin_anew();
  World world;
  world.save();
  Machine machine;
  Plan plan;
  static char* got[2];
  for (unsigned i = 0; i < 2; ++i) plan.threads.push_back([i] { got[i] = LargeScenario::alloc(4); });
  plan.threads.push_back([] {
    large_purge(process_fields, true, kUnlimited);
    for (Field* f = first_field(process_fields); f != nullptr; f = next_field(*f)) {
      if (f->granules == 0) abort();
    }
  });
  plan.reset = [&] {
    LargeScenario::close_fields(process_fields.first.load(order::relaxed));
    world.reset();
    got[0] = got[1] = nullptr;
  };
  plan.verdict = []() -> std::string {
    if (!large_check(process_fields)) return "large_check";
    for (char* object : got) {
      if (!large_place(object).starts(object)) return "a live object is not found";
    }
    unsigned listed = 0;
    for (Field* f = first_field(process_fields); f != nullptr; f = next_field(*f)) {
      for (char* object : got) listed += large_place(object).field == f ? 1 : 0;
    }
    return got[0] != got[1] && listed == 2 ? "" : "a field is lost";
  };
  expect_sound(explore(machine, plan, {.executions = 600}), "large: two open the first field");
  plan.reset();
}

// Objects that a CPU cache keeps: parked by one, taken by another, drained by a third.
TEST(ExploreLarge, ParkedObjects) {
  folio_test::cpu_of_thread = [] { return 0u; };
  LargeScenario s;
  s.plan.threads = {s.free_cached(0), s.allocate_cached(1, 8), s.free_cached(1)};
  expect_sound(explore(s.machine, s.plan, {.executions = 3000}), "large: two are parked, one is taken");
  LargeScenario drained;
  drained.plan.threads = {drained.free_cached(0), drained.allocate_cached(1, 8),
                          [] { cpu_caches_trim(process_caches, true); }};
  expect_sound(explore(drained.machine, drained.plan, {.executions = 3000}), "large: park, take, drain");
  LargeScenario twice;
  twice.writes = false;
  twice.plan.threads = {twice.free_cached(1), twice.free(1)};
  const auto sound = twice.plan.verdict;
  twice.plan.verdict = [&]() -> std::string { return twice.freed[1] != 1 ? "not one free succeeded" : sound(); };
  expect_sound(explore(twice.machine, twice.plan, {.executions = 3000}), "large: parked and freed at once");
  folio_test::cpu_of_thread = nullptr;
}

// A program that orders its calls: whoever gets the pointer frees what it points to.
TEST(ExploreLarge, HandedOver) {
  LargeScenario s;
  s.start_without(1);
  static Atomic<char*> mailbox{nullptr};
  const auto reset = s.plan.reset;
  s.plan.reset = [reset] {
    reset();
    mailbox.store(nullptr, order::relaxed);
  };
  static bool refused;
  refused = false;
  s.plan.threads = {[] {
                      char* const object = LargeScenario::alloc(6);
                      Machine::write_object(object);
                      mailbox.store(object, order::release);
                    },
                    [] {
                      char* const object = mailbox.load(order::acquire);
                      if (object == nullptr) return;
                      Machine::write_object(object);
                      refused = !large_free(object) || refused;
                    },
                    s.allocate(2, 6)};
  const auto sound = s.plan.verdict;
  s.plan.verdict = [&]() -> std::string { return refused ? "a live object was refused" : sound(); };
  expect_sound(explore(s.machine, s.plan, {.executions = 3000}), "large: handed over, another one takes");
}

// Whoever stops for ever, the others finish, and no granule has two owners.
TEST(VanishLarge, TakeGivePurge) {
  LargeScenario s;
  s.quiet = false;
  s.start_without(1);
  s.plan.threads = {s.allocate(0, 20), s.free(0), LargeScenario::purge()};
  expect_sound(vanish(s.machine, s.plan), "large: take, give, purge, one of which vanishes");
}

// A fork at each step of the others: the child gives back what is parked, and what is free can be found.
void expect_sound_after_a_fork(LargeScenario& s, const char* what) {
  s.quiet = false;
  const auto sound = s.plan.verdict;
  s.plan.verdict = [sound]() -> std::string {
    cpu_caches_after_fork(process_caches, process_fields, true);
    return large_stats(process_fields).parked != 0 ? "an object stays parked" : sound();
  };
  expect_sound(fork_anywhere(s.machine, s.plan), what);
}
TEST(ForkLarge, TakeGivePurgeResizePark) {
  folio_test::cpu_of_thread = [] { return 0u; };
  LargeScenario cached;
  cached.plan.threads = {cached.allocate_cached(0, 8), cached.free_cached(0), cached.free_cached(1)};
  expect_sound_after_a_fork(cached, "fork: while large objects are parked and taken");
  folio_test::cpu_of_thread = nullptr;
  LargeScenario resized;
  resized.start_without(1);
  resized.plan.threads = {resized.resize(0, 12), resized.allocate(1, 6), LargeScenario::purge()};
  expect_sound_after_a_fork(resized, "fork: while large objects grow, are taken and purged");
  LargeScenario given;
  given.plan.threads = {given.resize(1, 4), given.free(0), given.allocate(2, 20)};
  expect_sound_after_a_fork(given, "fork: while large objects shrink, are given, and one opens a field");
}

// It stops between lowering the hint and looking again, while others free what it then hides.
TEST(ExploreLarge, AThreadThatVanishesWhileItLowersTheHint) {
  LargeScenario s;
  s.quiet = false;
  s.plan.threads = {s.allocate(0, 20), s.free(0), s.free(1)};
  expect_sound(vanish(s.machine, s.plan, 1, 5), "large: a search fails while two give, one of which vanishes");
}

}  // namespace
}  // namespace explorer
