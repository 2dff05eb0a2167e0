// Turns the options into bytes, compares what is held with the limits, and notes the level.
#include "policy/limit.h"

#include "base/bits.h"
#include "base/text.h"
#include "os/os.h"
#include "policy/cgroup.h"
#include "space/field.h"
#include "space/pages.h"
#include "space/room.h"
#include "sync/relaxed.h"

namespace folio {

constinit LimitState limit_state;

namespace {

// After a pass that gave back less than it should: what was held and dirty. 0: the last pass was not in vain.
constinit Hint<int64_t> vain_held{0}, vain_dirty{0};

// After a pass in vain there is another one when so much more is held, or half as much more dirty.
int64_t step_of(int64_t soft) { return most_of(least_of(soft / 128, int64_t{1} << 20), int64_t{128} << 10); }

uint32_t level_at(int64_t held) {
  const int64_t soft = limit_state.begins.get();
  const int64_t hard = limit_state.hard.get();
  if (soft == 0) return kCalm;
  if (hard != 0 && held > hard - limit_reserve(hard)) return kAtHard;
  return held > soft ? kAtSoft : held > soft / 16 * 15 ? kTight : held > soft / 8 * 7 ? kNear : kCalm;
}

void note_level(uint32_t level) {
  if (limit_state.level.get() != level) limit_state.level.set(level);
  const uint32_t now = level_now();
  if (limit_state.highest.get() < now) limit_state.highest.set(now);
  const bool tight = now >= kNear;
  if (room_is_tight() != tight) memory_room.tight.set(tight);
}

// ---- What the options say ----

struct Asked {
  const char* name;
  const char* which;
  unsigned shift;  // of its problems
  int64_t less;    // what `cgroup` leaves to others is a share of the limit: 1 in so many
};
constexpr Asked kSoft{"limit_soft", "soft", 0, 16}, kHard{"limit_hard", "hard", kOfHard, 32};

void note_problem(uint32_t problem) { limit_state.problems.set_bits(problem); }

void say(Text& line, Complain* complain) {
  line << " (see docs/memory.md)";
  complain(line.data(), line.length());
}

Text& begin(Text& line, const Asked& asked, int64_t value) {
  line << "folio: FOLIO_OPTIONS: \"" << asked.name << ":";
  if (value == kLimitOfCgroup) return line << "cgroup\": ";
  if (value < 0) return line << static_cast<uint64_t>(-value) << "%\": ";
  return line << static_cast<uint64_t>(value) << "\": ";
}

constexpr char kNotKnown[] = "/proc/self/cgroup and /proc/self/mountinfo do not say which memory cgroup this is; ";

int64_t share_of(const MemoryCgroup& cgroup, int64_t value, const Asked& asked, Complain* complain) {
  const auto machine = static_cast<int64_t>(os::physical_bytes());
  const bool smaller = cgroup.limit != 0 && (machine == 0 || cgroup.limit < machine);
  const int64_t whole = smaller ? cgroup.limit : machine;
  Text line;
  if (whole == 0) {
    note_problem(kNoMemorySize << asked.shift);
    begin(line, asked, value) << "it is not known how much memory the machine has; there is no " << asked.which
                              << " limit";
    say(line, complain);
  } else if (!cgroup.known) {
    note_problem(kShareOfMachine << asked.shift);
    begin(line, asked, value) << kNotKnown << "of the machine's memory that is "
                              << static_cast<uint64_t>(whole / 100 * -value) << " bytes, which holds";
    say(line, complain);
  }
  return whole / 100 * -value;
}

int64_t of_cgroup(const MemoryCgroup& cgroup, int64_t value, const Asked& asked, Complain* complain) {
  if (cgroup.limit != 0) return cgroup.limit - cgroup.limit / asked.less;
  note_problem((cgroup.known ? kNoCgroupLimit : kCgroupUnknown) << asked.shift);
  Text line;
  begin(line, asked, value) << (cgroup.known ? "the cgroup of this process has no memory limit, nor has one above it; "
                                             : kNotKnown)
                            << "there is no " << asked.which << " limit";
  say(line, complain);
  return 0;
}

int64_t resolve(const MemoryCgroup& cgroup, int64_t value, const Asked& asked, Complain* complain) {
  int64_t bytes = value;
  if (value < 0) {
    bytes =
        value == kLimitOfCgroup ? of_cgroup(cgroup, value, asked, complain) : share_of(cgroup, value, asked, complain);
  }
  if (bytes == 0 || bytes >= kLimitLeast) return bytes;
  note_problem(kTooSmall << asked.shift);
  Text line;
  begin(line, asked, value) << static_cast<uint64_t>(bytes) << " bytes are too few for any program; "
                            << static_cast<uint64_t>(kLimitLeast) << " hold";
  say(line, complain);
  return kLimitLeast;
}

}  // namespace

int64_t limit_reserve(int64_t hard) {
  return least_of(most_of(least_of(hard / 32, int64_t{32} << 20), int64_t{1} << 20), hard / 4);
}

void limit_start(Complain* complain) {
  const int64_t asked_soft = options.limit_soft, asked_hard = options.limit_hard;
  if (asked_soft == 0 && asked_hard == 0) return;
  MemoryCgroup cgroup{};
  if (asked_soft < 0 || asked_hard < 0) find_memory_cgroup(&cgroup);
  int64_t soft = resolve(cgroup, asked_soft, kSoft, complain);
  const int64_t hard = resolve(cgroup, asked_hard, kHard, complain);
  if (hard != 0 && soft > hard) {
    note_problem(kSoftAboveHard);
    Text line;
    line << "folio: FOLIO_OPTIONS: limit_soft (" << static_cast<uint64_t>(soft) << " bytes) is above limit_hard ("
         << static_cast<uint64_t>(hard) << " bytes), which holds for both";
    say(line, complain);
    soft = hard;
  }
  limit_state.asked_soft.set(asked_soft);
  limit_state.asked_hard.set(asked_hard);
  options.limit_soft = soft;
  options.limit_hard = hard;
  limit_set(soft, hard);
}

// Others may meanwhile read some of the old values beside new ones; two calls at once may leave some of each.
void limit_set(int64_t soft, int64_t hard) {
  const int64_t bulk = hard - limit_reserve(hard);
  const int64_t begins = hard == 0 ? soft : soft == 0 || soft > bulk ? bulk : soft;
  limit_state.soft.set(soft);
  limit_state.hard.set(hard);
  limit_state.begins.set(begins);
  memory_room.most_small.set(hard == 0 ? MemoryRoom::kUnlimited : hard);
  memory_room.most_large.set(hard == 0 ? MemoryRoom::kUnlimited : bulk);
  memory_room.counted.set(begins != 0);
  vain_held.set(0);
  limit_poll();
}

Level level_now() {
  const uint32_t own = limit_state.level.get();
  const uint32_t system = limit_state.pressure.get();
  return static_cast<Level>(own > system ? own : system);
}

Level limit_poll() {
  const int64_t held = held_bytes();
  const uint32_t before = limit_state.level.get();
  uint32_t level = level_at(held);
  if (level < before) {
    const uint32_t slower = level_at(held + limit_state.begins.get() / 64);
    level = slower < before ? slower : before;
  }
  note_level(level);
  return static_cast<Level>(level);
}

Level limit_take_highest() {
  note_level(limit_state.level.get());
  return static_cast<Level>(limit_state.highest.swap(level_now()));
}

size_t limit_excess() {
  const int64_t soft = limit_state.begins.get();
  const int64_t held = held_bytes();
  if (soft == 0 || held <= soft) return 0;
  const int64_t vain = vain_held.get(), step = step_of(soft);
  const int64_t more_dirty = page_counts.dirty.get() - vain_dirty.get();
  if (vain != 0 && held < vain + step && more_dirty < step / 2) return 0;
  return static_cast<size_t>(held - soft);
}

void limit_gave_back(size_t given, size_t excess) {
  const int64_t held = held_bytes();
  const bool in_vain = given < excess && held > limit_state.begins.get();
  vain_held.set(in_vain ? held : 0);
  if (in_vain) vain_dirty.set(page_counts.dirty.get());
}

void limit_note_refused(size_t bytes) {
  limit_state.refused.add(1);
  // Not where something else refused it, as address space; nor what no cache that the program drops makes room for.
  const bool by_limit = bytes <= static_cast<uint64_t>(limit_state.hard.get());
  if (by_limit && !has_room_for_large(bytes + 2 * kGranuleBytes)) note_level(kAtHard);
}

}  // namespace folio
