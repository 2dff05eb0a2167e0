// Pressure: what the system says of its memory, as a level of the ladder (limit.h), and the functions of the program's
// that are called when it, or the limits', rises. Files are opened when the process starts, with the option, and read
// by the housekeeper only; functions are called by the housekeeper only.
//
//   level    threads of the cgroup (or of all) waited for memory since the poll before    or the cgroup
//   kNear    5 % of the time, some of them                                                met memory.max or .high
//   kTight   15 % of the time, some of them
//   kAtSoft  10 % of the time, all of them                                                was out of memory
//
// That the cgroup met its limits says little: it does so as often as the kernel drops cached files.
#pragma once

#include <stdint.h>

#include "policy/limit.h"

namespace folio {

// With the option: finds the files. A line where that is in vain.
void pressure_start(Complain* complain);

// Reads them, and notes the level. Nothing without the option.
void pressure_poll(uint64_t now_ms);

using PressureFunction = void(int level);
inline constexpr unsigned kPressureFunctions = 16;

// `function` is to be called when that level is reached, kNear to kAtHard, and while it lasts once a second; not any
// more with kCalm. False if the level is none, or there are too many functions.
bool pressure_call(int level, PressureFunction* function);
bool pressure_has_functions();
// Calls those whose level `highest` reaches, the highest level since the call before.
void pressure_notify(Level highest, uint64_t now_ms);

}  // namespace folio
