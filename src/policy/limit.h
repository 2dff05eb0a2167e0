// Limits on what Folio holds: what they are, how near they are, and how much is to go. core/ladder.h decides what goes,
// and when the limits are checked; the stores ask space/room.h.
//
//   0 --------- 7/8 ------- 15/16 ------ soft -------- hard - reserve ----- hard
//     kCalm      kNear       kTight     kAtSoft             kAtHard
//
//   kNear      no new huge pages; nothing comes before it is needed
//   kTight     CPU caches and depot are emptied, and CPU caches keep little
//   kAtSoft    what is free goes at once, so that held <= soft as far as it can be
//   kAtHard    large and huge objects get no memory that is not there already; from `hard` on no object does
//
// Where only a hard limit is set, or the soft one lies in its reserve, the soft one is where the reserve begins.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "config/options.h"
#include "sync/relaxed.h"

namespace folio {

enum Level : uint32_t { kCalm, kNear, kTight, kAtSoft, kAtHard };

// The bits of `problems`: mistakes in the options. Each was a line on standard error when the process started.
enum LimitProblem : uint32_t {
  kCgroupUnknown = 1,    // with a limit of `cgroup`: the kernel does not say which one it is
  kNoCgroupLimit = 2,    // with a limit of `cgroup`: it has none
  kNoMemorySize = 4,     // with a share: the machine does not say how much memory it has
  kTooSmall = 8,         // below kLimitLeast
  kShareOfMachine = 16,  // with a share: as kCgroupUnknown, so it is of the machine's memory
  kOfHard = 8,           // shift: these are the hard limit's
  kSoftAboveHard = 1u << 16,
  kNoPressureFiles = 1u << 17,        // pressure:on, and nothing to read
  kPressureWithoutKeeper = 1u << 18,  // pressure:on with housekeeper:off
};

inline constexpr int64_t kLimitLeast = int64_t{4} << 20;

// Also read by tools from outside.
struct LimitState {
  Hint<int64_t> soft, hard;              // in force; 0: none
  Hint<int64_t> asked_soft, asked_hard;  // as config/options.h says
  Hint<int64_t> begins;                  // where kAtSoft begins: "soft" as drawn above; 0: no limits
  Hint<uint32_t> problems;
  Hint<uint32_t> level;       // as last noted
  Hint<uint32_t> highest;     // since limit_take_highest
  Hint<uint32_t> pressure;    // the system's, as a level: policy/pressure.h
  Counter<uint64_t> refused;  // requests that got no memory, since the start
};
extern LimitState limit_state;

// Puts what the options say in force, and bytes in their place. Opens files where they name a share or the cgroup. Each
// mistake is one line.
void limit_start(Complain* complain);

// Both in bytes, 0 for none. The limits that hold from now on.
void limit_set(int64_t soft, int64_t hard);

inline bool limits_on() { return limit_state.begins.get() != 0; }

// What is kept back of a hard limit for small objects.
int64_t limit_reserve(int64_t hard);

// Notes and returns the level for what is held now. It rises at once, and falls when a 64th of the soft limit less is
// held than where the level begins.
Level limit_poll();
// The higher of two levels, the limits' and the system's. And the highest value of that since the last call of
// limit_take_highest.
Level level_now();
Level limit_take_highest();

// How much is over the soft limit and is to be given back. 0 after a pass that gave back too little, until more is held
// or dirty. The caller then reports how much it has given back, and of how much.
// Several threads at once each give back the whole excess: little, since each call adds little. Were it shared out, a
// thread that vanished with its share would raise the limit for good.
size_t limit_excess();
void limit_gave_back(size_t given, size_t excess);

// A request of so many bytes got no memory.
void limit_note_refused(size_t bytes);

}  // namespace folio
