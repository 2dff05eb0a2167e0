#include "policy/limit.h"

#include "base/text.h"
#include "os/os.h"
#include "policy/cgroup.h"
#include "space/pages.h"
#include "space/room.h"

namespace folio {

constinit LimitState limit_state;

namespace {

// After a pass that gave back less than it should: what was held and dirty. 0: the last pass was not in vain.
constinit Atomic<int64_t> vain_held{0}, vain_dirty{0};

int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }

// What more is held or dirty after a pass in vain before there is another one.
int64_t step_of(int64_t soft) { return most_of(least_of(soft / 128, int64_t{1} << 20), int64_t{128} << 10); }

uint32_t level_at(int64_t held) {
  const int64_t soft = limit_state.begins.load(order::relaxed);  // relaxed: see limit.h
  const int64_t hard = limit_state.hard.load(order::relaxed);    // relaxed: see limit.h
  if (soft == 0) return kCalm;
  if (hard != 0 && held > hard - limit_reserve(hard)) return kAtHard;
  return held > soft ? kAtSoft : held > soft / 16 * 15 ? kTight : held > soft / 8 * 7 ? kNear : kCalm;
}

void note_level(uint32_t level) {
  // Relaxed, all of them: see limit.h.
  if (limit_state.level.load(order::relaxed) != level) limit_state.level.store(level, order::relaxed);
  const uint32_t now = level_now();
  if (limit_state.highest.load(order::relaxed) < now)
    limit_state.highest.store(now, order::relaxed);  // relaxed: as above
  const bool tight = now >= kNear;
  if (room_is_tight() != tight) memory_room.tight.store(tight, order::relaxed);  // relaxed: see room.h
}

// ---- What the options say ----

struct Asked {
  const char* name;
  const char* which;
  unsigned shift;  // of its problems
  int64_t less;    // what `cgroup` leaves to others is a share of the limit: 1 in so many
};
constexpr Asked kSoft{"limit_soft", "soft", 0, 16}, kHard{"limit_hard", "hard", kOfHard, 32};

void note_problem(uint32_t problem) { limit_state.problems.fetch_or(problem, order::relaxed); }  // relaxed: see limit.h

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

constexpr char kNotTold[] = "/proc/self/cgroup and /proc/self/mountinfo do not say which memory cgroup this is; ";

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
    begin(line, asked, value) << kNotTold << "of the machine's memory that is "
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
                                             : kNotTold)
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
  limit_state.asked_soft.store(asked_soft, order::relaxed);  // relaxed: see limit.h
  limit_state.asked_hard.store(asked_hard, order::relaxed);  // relaxed: see limit.h
  options.limit_soft = soft;
  options.limit_hard = hard;
  limit_set(soft, hard);
}

void limit_set(int64_t soft, int64_t hard) {
  const int64_t bulk = hard - limit_reserve(hard);
  const int64_t begins = hard == 0 ? soft : soft == 0 || soft > bulk ? bulk : soft;
  // Relaxed, all of them: who looks meanwhile sees some of the old ones.
  limit_state.soft.store(soft, order::relaxed);                                             // relaxed: see above
  limit_state.hard.store(hard, order::relaxed);                                             // relaxed: see above
  limit_state.begins.store(begins, order::relaxed);                                         // relaxed: see above
  memory_room.most_small.store(hard == 0 ? MemoryRoom::kUnlimited : hard, order::relaxed);  // relaxed: see above
  memory_room.most_large.store(hard == 0 ? MemoryRoom::kUnlimited : bulk, order::relaxed);  // relaxed: see above
  vain_held.store(0, order::relaxed);                                                       // relaxed: see above
  limit_look();
}

Level level_now() {
  const uint32_t own = limit_state.level.load(order::relaxed);        // relaxed: see limit.h
  const uint32_t system = limit_state.pressure.load(order::relaxed);  // relaxed: see limit.h
  return static_cast<Level>(own > system ? own : system);
}

Level limit_look() {
  const int64_t held = held_bytes();
  const uint32_t before = limit_state.level.load(order::relaxed);  // relaxed: see limit.h
  uint32_t level = level_at(held);
  if (level < before) {
    const uint32_t slower = level_at(held + limit_state.begins.load(order::relaxed) / 64);  // relaxed: see limit.h
    level = slower < before ? slower : before;
  }
  note_level(level);
  return static_cast<Level>(level);
}

Level limit_take_highest() {
  note_level(limit_state.level.load(order::relaxed));                                    // relaxed: see limit.h
  return static_cast<Level>(limit_state.highest.exchange(level_now(), order::relaxed));  // relaxed: see limit.h
}

size_t limit_excess() {
  const int64_t soft = limit_state.begins.load(order::relaxed);  // relaxed: see limit.h
  const int64_t held = held_bytes();
  if (soft == 0 || held <= soft) return 0;
  // Relaxed, all of them: estimates.
  const int64_t vain = vain_held.load(order::relaxed), step = step_of(soft);
  const int64_t more_dirty = page_counts.dirty.load(order::relaxed) - vain_dirty.load(order::relaxed);
  if (vain != 0 && held < vain + step && more_dirty < step / 2) return 0;
  return static_cast<size_t>(held - soft);
}

void limit_gave_back(size_t given, size_t excess) {
  const int64_t held = held_bytes();
  const bool in_vain = given < excess && held > limit_state.begins.load(order::relaxed);  // relaxed: see limit.h
  // Relaxed, all of them: estimates.
  vain_held.store(in_vain ? held : 0, order::relaxed);
  if (in_vain) vain_dirty.store(page_counts.dirty.load(order::relaxed), order::relaxed);  // relaxed: as above
}

void limit_note_refused() {
  limit_state.refused.fetch_add(1, order::relaxed);  // relaxed: a statistic
  note_level(kAtHard);
}

}  // namespace folio
