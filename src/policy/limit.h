// Limits on what Folio holds: what they are, how near they are, and how much is to go. What goes, and when somebody
// looks, is core/ladder.h's; the stores ask space/room.h.
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

// What `problems` says: mistakes in the options, of which each had its line when the process started.
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
  Hint<int64_t> begins;                  // where the third rung does: the soft limit, as drawn above; 0: no limits
  Hint<uint32_t> problems;
  Hint<uint32_t> level;       // as far as anybody looked
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

// The level for what is held now; it falls only when some less is held than where it began. Notes it.
Level limit_poll();
// The higher of two levels, the limits' and the system's; and the highest that this was since the last call of the
// second function.
Level level_now();
Level limit_take_highest();

// How much is over the soft limit, to be given back. 0 also where a pass was in vain, until more is held or dirty. Who
// has given back what there was says how much, of how much. (Of several threads at once each gives back all that is
// over: little, since none has added more to it than a call may. To share it out, a thread that vanishes meanwhile
// would raise the limit for good.)
size_t limit_excess();
void limit_gave_back(size_t given, size_t excess);

// A request got no memory.
void limit_note_refused();

}  // namespace folio
