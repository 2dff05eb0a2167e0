#include "policy/limit.h"

#include "space/room.h"
#include "unit/policy/files.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr char kSee[] = " (see docs/memory.md)";

// What the options say, in force; no limits afterwards.
class Limits {
 public:
  explicit Limits(const std::string& text) {
    complaints.clear();
    parse_options(text.c_str(), options, complain);
    limit_start(complain);
    lines = complaints;
  }
  ~Limits() {
    limit_set(0, 0);
    limit_state.problems.set(0);
    limit_take_highest();
  }
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;

  int64_t soft() const { return limit_state.soft.get(); }
  int64_t hard() const { return limit_state.hard.get(); }
  uint32_t problems() const { return limit_state.problems.get(); }
  std::string line() const { return lines.size() == 1 ? lines[0] : "there were " + std::to_string(lines.size()); }

  std::vector<std::string> lines;

 private:
  SavedOptions saved_;
};

TEST(Limit, OffByDefaultAndThenThereIsRoom) {
  const Limits limits("");
  EXPECT_FALSE(limits_on());
  EXPECT_TRUE(has_room(size_t{1} << 62));
  EXPECT_TRUE(has_room_for_large(size_t{1} << 62));
  EXPECT_EQ(limit_poll(), kCalm);
  EXPECT_EQ(limit_excess(), 0u);
}

TEST(Limit, BytesWithSuffixes) {
  for (const auto& [text, bytes] : {std::pair{"67108864", 64 * kMiB},
                                    {"65536K", 64 * kMiB},
                                    {"65536k", 64 * kMiB},
                                    {"64M", 64 * kMiB},
                                    {"3G", 3072 * kMiB},
                                    {"2T", 2048 * 1024 * kMiB}}) {
    const Limits limits(std::string("limit_soft:") + text);
    EXPECT_EQ(limits.soft(), static_cast<int64_t>(bytes)) << text;
    EXPECT_EQ(options.limit_soft, static_cast<int64_t>(bytes)) << text;
    EXPECT_TRUE(limits.lines.empty()) << limits.line();
    EXPECT_TRUE(limits_on());
  }
}

TEST(Limit, WhatIsNoLimitIsReported) {
  for (const char* text :
       {"banana", "101%", "0%", "-5%", "%", "M", "1.5G", "64MiB", "9999999999T", "cgroups", "4611686018427387905",
        "9223372036854775808", "18446744073709551615", "18446744073719551616", ""}) {
    const Limits limits(std::string("limit_hard:") + text);
    EXPECT_EQ(limits.line(), std::string("folio: FOLIO_OPTIONS: \"") + text +
                                 "\" is no value for \"limit_hard\": 0 to 4611686018427387904 bytes (also with K, M, G "
                                 "or T), 1% to 100%, or cgroup; the default 0 holds (see docs/options.md)");
    EXPECT_FALSE(limits_on());
  }
}

TEST(Limit, SharesAreOfTheCgroupsLimit) {
  const FakeFiles files;
  files.write_container("1000000000");
  const Limits limits("limit_soft:80%,limit_hard:95%");
  EXPECT_EQ(limits.soft(), 800000000);
  EXPECT_EQ(limits.hard(), 950000000);
  EXPECT_EQ(options.limit_hard, 950000000);
  EXPECT_EQ(limit_state.asked_soft.get(), -80);
  EXPECT_TRUE(limits.lines.empty());
}

TEST(Limit, SharesAreOfTheMachineWhereTheCgroupHasNoLimit) {
  const FakeFiles files;
  const auto machine = static_cast<int64_t>(os::physical_bytes());
  files.write_container("max");
  {
    const Limits limits("limit_soft:50%");
    EXPECT_EQ(limits.soft(), machine / 100 * 50);
    EXPECT_TRUE(limits.lines.empty());
  }
  files.write_container(std::to_string(machine * 2));
  const Limits limits("limit_soft:50%");
  EXPECT_EQ(limits.soft(), machine / 100 * 50);
}

TEST(Limit, CgroupLeavesALittleToOthers) {
  const FakeFiles files;
  files.write_container("320000000");
  const Limits limits("limit_soft:cgroup,limit_hard:cgroup");
  EXPECT_EQ(limits.soft(), 300000000);
  EXPECT_EQ(limits.hard(), 310000000);
  EXPECT_EQ(limit_state.asked_hard.get(), kLimitOfCgroup);
  EXPECT_TRUE(limits.lines.empty());
}

TEST(Limit, CgroupWithoutALimit) {
  const FakeFiles files;
  files.write_container("max");
  const Limits limits("limit_soft:cgroup");
  EXPECT_EQ(limits.line(),
            std::string("folio: FOLIO_OPTIONS: \"limit_soft:cgroup\": the cgroup of this process has no memory limit, "
                        "nor has one above it; there is no soft limit") +
                kSee);
  EXPECT_EQ(limits.problems(), kNoCgroupLimit);
  EXPECT_FALSE(limits_on());
  EXPECT_EQ(options.limit_soft, 0);
}

TEST(Limit, FilesThatCannotBeRead) {
  const FakeFiles files;
  {
    const Limits limits("limit_hard:cgroup");
    EXPECT_EQ(limits.line(),
              std::string("folio: FOLIO_OPTIONS: \"limit_hard:cgroup\": /proc/self/cgroup and /proc/self/mountinfo do "
                          "not say which memory cgroup this is; there is no hard limit") +
                  kSee);
    EXPECT_EQ(limits.problems(), kCgroupUnknown << kOfHard);
  }
  const auto share = static_cast<int64_t>(os::physical_bytes()) / 100 * 60;
  const Limits limits("limit_soft:60%");
  EXPECT_EQ(limits.line(),
            "folio: FOLIO_OPTIONS: \"limit_soft:60%\": /proc/self/cgroup and /proc/self/mountinfo do not say which "
            "memory cgroup this is; of the machine's memory that is " +
                std::to_string(share) + " bytes, which holds" + kSee);
  EXPECT_EQ(limits.soft(), share);
  EXPECT_EQ(limits.problems(), uint32_t{kShareOfMachine});
}

TEST(Limit, SoftAboveHard) {
  const Limits limits("limit_soft:3G,limit_hard:2G");
  EXPECT_EQ(limits.line(),
            std::string("folio: FOLIO_OPTIONS: limit_soft (3221225472 bytes) is above limit_hard (2147483648 bytes), "
                        "which holds for both") +
                kSee);
  EXPECT_EQ(limits.problems(), uint32_t{kSoftAboveHard});
  EXPECT_EQ(limits.soft(), limits.hard());
}

TEST(Limit, TooSmallForAnyProgram) {
  const Limits limits("limit_soft:512,limit_hard:1M");
  ASSERT_EQ(limits.lines.size(), 2u);
  EXPECT_EQ(
      limits.lines[0],
      std::string("folio: FOLIO_OPTIONS: \"limit_soft:512\": 512 bytes are too few for any program; 4194304 hold") +
          kSee);
  EXPECT_EQ(limits.lines[1],
            std::string("folio: FOLIO_OPTIONS: \"limit_hard:1048576\": 1048576 bytes are too few for any program; "
                        "4194304 hold") +
                kSee);
  EXPECT_EQ(limits.hard(), kLimitLeast);
}

// ---- The ladder ----

// Something that counts as held.
class Held {
 public:
  explicit Held(int64_t bytes) : bytes_(bytes) { count_resident(bytes); }
  ~Held() { count_resident(-bytes_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  int64_t bytes_;
};

constexpr auto kSoftBytes = static_cast<int64_t>(640 * kMiB);

TEST(Limit, TheRungsAreWhereTheyAreDrawn) {
  const int64_t before = held_bytes();
  ASSERT_LT(before, kSoftBytes / 2);
  const Limits limits("limit_soft:640M,limit_hard:1G");
  const auto poll_with = [&](int64_t held) {
    const Held more(held - before);
    return limit_poll();
  };
  EXPECT_EQ(poll_with(kSoftBytes / 2), kCalm);
  EXPECT_EQ(poll_with(kSoftBytes / 8 * 7), kCalm);
  EXPECT_EQ(poll_with(kSoftBytes / 8 * 7 + 1), kNear);
  EXPECT_TRUE(room_is_tight());
  EXPECT_EQ(poll_with(kSoftBytes / 16 * 15 + 1), kTight);
  EXPECT_EQ(poll_with(kSoftBytes), kTight);
  EXPECT_EQ(poll_with(kSoftBytes + 1), kAtSoft);
  EXPECT_EQ(poll_with(static_cast<int64_t>(992 * kMiB)), kAtSoft);
  EXPECT_EQ(poll_with(static_cast<int64_t>(992 * kMiB) + 1), kAtHard);
  EXPECT_EQ(poll_with(kSoftBytes / 2), kCalm);
  EXPECT_FALSE(room_is_tight());
}

TEST(Limit, ALevelFallsOnlyWhenSomeLessIsHeld) {
  const int64_t before = held_bytes(), near = kSoftBytes / 8 * 7;
  const Limits limits("limit_soft:640M");
  {
    const Held more(near + 1 - before);
    EXPECT_EQ(limit_poll(), kNear);
  }
  {
    const Held more(near - 1 - before);
    EXPECT_EQ(limit_poll(), kNear);
  }
  const Held more(near - kSoftBytes / 64 - before);
  EXPECT_EQ(limit_poll(), kCalm);
}

TEST(Limit, AHardLimitAloneHasItsSoftOneWhereTheReserveBegins) {
  const Limits limits("limit_hard:1G");
  EXPECT_EQ(limits.soft(), 0);
  EXPECT_EQ(limit_state.begins.get(), static_cast<int64_t>(992 * kMiB));
  limit_set(static_cast<int64_t>(1023 * kMiB), static_cast<int64_t>(kMiB << 10));
  EXPECT_EQ(limit_state.begins.get(), static_cast<int64_t>(992 * kMiB));
}

TEST(Limit, TheReserveIsALittle) {
  EXPECT_EQ(limit_reserve(kLimitLeast), static_cast<int64_t>(kMiB));
  EXPECT_EQ(limit_reserve(static_cast<int64_t>(64 * kMiB)), static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(limit_reserve(int64_t{1} << 40), static_cast<int64_t>(32 * kMiB));
}

TEST(Limit, RoomEndsSoonerForLargeObjects) {
  const int64_t before = held_bytes();
  const Limits limits("limit_hard:1G");
  const Held more(static_cast<int64_t>(992 * kMiB) - before);
  EXPECT_TRUE(has_room_for_large(0));
  EXPECT_FALSE(has_room_for_large(1));
  EXPECT_TRUE(has_room(32 * kMiB));
  EXPECT_FALSE(has_room(32 * kMiB + 1));
  EXPECT_FALSE(has_room(~size_t{0}));
}

TEST(Limit, WhatIsOverIsToGo) {
  const int64_t before = held_bytes();
  const Limits limits("limit_soft:640M");
  EXPECT_EQ(limit_excess(), 0u);
  const Held more(kSoftBytes + 1000 - before);
  EXPECT_EQ(limit_excess(), 1000u);
  limit_gave_back(1000, 1000);  // others have added as much meanwhile
  EXPECT_EQ(limit_excess(), 1000u);
}

TEST(Limit, AfterAPassInVainThereIsNoneUntilSomethingChanged) {
  const int64_t before = held_bytes();
  const Limits limits("limit_soft:640M");
  const Held more(kSoftBytes + 1000 - before);
  limit_gave_back(0, limit_excess());
  EXPECT_EQ(limit_excess(), 0u);
  {
    const Held little(100 * 1000);
    EXPECT_EQ(limit_excess(), 0u);
  }
  {
    const Held much(kMiB);
    EXPECT_EQ(limit_excess(), kMiB + 1000);
    limit_gave_back(0, kMiB + 1000);
    EXPECT_EQ(limit_excess(), 0u);
  }
  count_dirty(kMiB);
  EXPECT_NE(limit_excess(), 0u);
  count_dirty(-static_cast<int64_t>(kMiB));
}

TEST(Limit, WhatAnotherThreadGaveBackWasNotInVain) {
  const int64_t before = held_bytes();
  const Limits limits("limit_soft:640M");
  limit_gave_back(0, 1000);
  const Held more(kSoftBytes + 1000 - before);
  EXPECT_EQ(limit_excess(), 1000u);
}

TEST(Limit, WhatNoLimitRefusedIsNoLevel) {
  {
    const Limits limits("limit_soft:1G");
    limit_take_highest();
    limit_note_refused(size_t{1} << 30);
    EXPECT_EQ(limit_take_highest(), kCalm) << "there is no hard limit";
  }
  const Limits limits("limit_hard:1G");
  const uint64_t before = limit_state.refused.get();
  for (const size_t bytes : {size_t{100}, size_t{2} << 30, size_t{PTRDIFF_MAX}}) {
    limit_note_refused(bytes);
    EXPECT_EQ(limit_take_highest(), kCalm) << bytes;
  }
  EXPECT_EQ(limit_state.refused.get(), before + 3);
}

TEST(Limit, TheHighestLevelIsKeptUntilItIsTaken) {
  const Limits limits("limit_hard:1G");
  limit_take_highest();
  limit_note_refused(size_t{1} << 30);
  EXPECT_EQ(limit_poll(), kCalm);
  EXPECT_EQ(limit_take_highest(), kAtHard);
  EXPECT_EQ(limit_take_highest(), kCalm);
}

}  // namespace
