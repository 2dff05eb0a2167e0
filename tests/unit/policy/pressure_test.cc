#include "policy/pressure.h"

#include "space/room.h"
#include "unit/child.h"
#include "unit/policy/files.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

std::string stalls(uint64_t some, uint64_t full) {
  return "some avg10=0.00 avg60=0.00 avg300=0.00 total=" + std::to_string(some) +
         "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=" + std::to_string(full) + "\n";
}

std::string events(unsigned high, unsigned max, unsigned oom) {
  return "low 0\nhigh " + std::to_string(high) + "\nmax " + std::to_string(max) + "\noom " + std::to_string(oom) +
         "\noom_kill 99\n";
}

uint32_t level() { return limit_state.pressure.get(); }

// The clock of these tests: what they say of time holds on any machine.
uint64_t now_ms = 1000;

// Looks now and when `ms` have passed, in which the files have become these.
void poll_again(unsigned ms, const std::function<void()>& change) {
  pressure_poll(now_ms);
  now_ms += ms;
  change();
  pressure_poll(now_ms);
}

TEST(Pressure, OffReadsNothing) {
  const SavedOptions saved;
  const FakeFiles files;
  complaints.clear();
  pressure_start(complain);
  EXPECT_TRUE(complaints.empty());
}

// Each in a child: files that are kept stay open.
TEST(Pressure, StallsAreLevels) {
  EXPECT_EQ(in_child([] {
              const FakeFiles files;
              files.write("/proc/self/cgroup", "0::/\n");
              files.write("/proc/pressure/memory", stalls(1000, 0));
              complaints.clear();
              options.pressure = kPressureOn;
              pressure_start(complain);
              if (!complaints.empty() || options.pressure != kPressureOn) return 1;
              uint64_t some = 1000, full = 0;
              const auto level_after = [&](unsigned some_percent, unsigned full_percent) {
                poll_again(200, [&] {
                  some += uint64_t{200} * 10 * some_percent;
                  full += uint64_t{200} * 10 * full_percent;
                  files.write("/proc/pressure/memory", stalls(some, full));
                });
                return level();
              };
              if (level_after(0, 0) != kCalm) return 2;
              if (level_after(4, 0) != kCalm) return 3;
              if (level_after(5, 0) != kNear || level_after(14, 9) != kNear) return 4;
              if (level_after(15, 9) != kTight || level_after(90, 9) != kTight) return 5;
              if (level_after(10, 10) != kAtSoft) return 6;
              if (level_now() != kAtSoft) return 7;
              limit_take_highest();
              if (!room_is_tight()) return 8;
              if (level_after(0, 0) != kCalm) return 9;
              limit_take_highest();
              return room_is_tight() ? 10 : 0;
            }),
            0);
}

TEST(Pressure, EventsOfTheCgroupAreLevels) {
  EXPECT_EQ(in_child([] {
              const FakeFiles files;
              files.write_container("1000000000");
              files.write("/sys/fs/cgroup/memory.events", events(0, 0, 0));
              files.write("/sys/fs/cgroup/memory.pressure", stalls(0, 0));
              complaints.clear();
              options.pressure = kPressureOn;
              pressure_start(complain);
              if (!complaints.empty()) return 1;
              const auto level_after = [&](unsigned high, unsigned max, unsigned oom) {
                poll_again(20, [&] { files.write("/sys/fs/cgroup/memory.events", events(high, max, oom)); });
                return level();
              };
              if (level_after(0, 0, 0) != kCalm) return 2;
              if (level_after(1, 0, 0) != kNear) return 3;
              if (level_after(1, 7, 0) != kNear) return 4;
              if (level_after(1, 7, 0) != kCalm) return 5;
              return level_after(1, 7, 1) == kAtSoft ? 0 : 6;
            }),
            0);
}

// The line with which it does not start.
std::string refusal() {
  complaints.clear();
  options.pressure = kPressureOn;
  pressure_start(complain);
  EXPECT_EQ(complaints.size(), 1u);
  return complaints.empty() ? "" : complaints[0];
}

TEST(Pressure, NothingToReadIsReported) {
  const SavedOptions saved;
  const FakeFiles files;
  EXPECT_EQ(refusal(),
            "folio: FOLIO_OPTIONS: \"pressure:on\": neither /proc/pressure/memory nor a cgroup's memory.pressure or "
            "memory.events can be read; off holds (see docs/memory.md)");
  EXPECT_EQ(options.pressure, kPressureOff);
  EXPECT_EQ(limit_state.problems.swap(0), uint32_t{kNoPressureFiles});
}

TEST(Pressure, WithoutAHousekeeperNobodyPolls) {
  const SavedOptions saved;
  options.housekeeper = kHousekeeperOff;
  EXPECT_EQ(refusal(),
            "folio: FOLIO_OPTIONS: \"pressure:on\": the housekeeper, which would look, is off; off holds (see "
            "docs/memory.md)");
  EXPECT_EQ(limit_state.problems.swap(0), uint32_t{kPressureWithoutKeeper});
}

// ---- The program's functions ----

std::vector<std::pair<char, int>> called;
void first(int level) { called.emplace_back('a', level); }
void second(int level) { called.emplace_back('b', level); }

TEST(Pressure, FunctionsAreCalledFromTheirLevelOn) {
  called.clear();
  EXPECT_FALSE(pressure_call(kNear, nullptr));
  EXPECT_FALSE(pressure_call(-1, first));
  EXPECT_FALSE(pressure_call(kAtHard + 1, first));
  EXPECT_TRUE(pressure_call(kNear, first));
  EXPECT_TRUE(pressure_call(kAtSoft, second));
  EXPECT_TRUE(pressure_has_functions());
  using Calls = std::vector<std::pair<char, int>>;
  pressure_notify(kCalm, now_ms);
  EXPECT_EQ(called, Calls{});
  pressure_notify(kTight, now_ms);
  EXPECT_EQ(called, (Calls{{'a', kTight}}));
  pressure_notify(kTight, now_ms);  // it lasts: not again so soon
  EXPECT_EQ(called.size(), 1u);
  pressure_notify(kAtHard, now_ms);  // it rises
  EXPECT_EQ(called, (Calls{{'a', kTight}, {'a', kAtHard}, {'b', kAtHard}}));
  pressure_notify(kCalm, now_ms);
  pressure_notify(kNear, now_ms);  // and again
  EXPECT_EQ(called.size(), 4u);
  now_ms += 999;
  pressure_notify(kNear, now_ms);  // it lasts, but not for a second yet
  EXPECT_EQ(called.size(), 4u);
  now_ms += 1;
  pressure_notify(kNear, now_ms);  // it lasts
  EXPECT_EQ(called.size(), 5u);
  EXPECT_TRUE(pressure_call(kCalm, first));  // not any more
  pressure_notify(kCalm, now_ms);
  pressure_notify(kTight, now_ms);
  EXPECT_EQ(called.size(), 5u);
  EXPECT_TRUE(pressure_call(kTight, first));  // the same place
  pressure_notify(kTight, now_ms);
  EXPECT_EQ(called.size(), 6u);
  pressure_call(kCalm, first);
  pressure_call(kCalm, second);
}

template <int n>
void other(int) {}
template <int... n>
unsigned set_places(Level level, std::integer_sequence<int, n...>) {
  return (unsigned{pressure_call(level, other<n>)} + ...);
}

TEST(Pressure, ThereIsRoomForSixteenFunctions) {
  EXPECT_EQ(in_child([] {
              using Twenty = std::make_integer_sequence<int, 20>;
              const bool fitted = set_places(kNear, Twenty()) == kPressureFunctions;
              set_places(kCalm, Twenty());
              const bool empty = !pressure_has_functions();
              return fitted && empty && set_places(kNear, Twenty()) == kPressureFunctions ? kPassed : kFailed;
            }),
            kPassed);
}

TEST(Pressure, AFunctionThatIsNotThereIsCalmAndTakesNoPlace) {
  EXPECT_TRUE(pressure_call(kCalm, other<100>));
  EXPECT_FALSE(pressure_has_functions());
}

TEST(Pressure, ANewFunctionInAnOldPlaceIsCalledAtOnce) {
  called.clear();
  EXPECT_TRUE(pressure_call(kNear, first));
  pressure_notify(kTight, now_ms);
  EXPECT_TRUE(pressure_call(kCalm, first));
  EXPECT_TRUE(pressure_call(kNear, second));
  pressure_notify(kTight, now_ms);
  EXPECT_EQ(called.size(), 2u);
  EXPECT_TRUE(pressure_call(kCalm, second));
}

}  // namespace
