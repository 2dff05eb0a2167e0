// Which schedules the explorer runs: depth first, random, replayed, and with a thread that vanishes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "stress/explorer/explorer.h"

namespace explorer {

struct Limits {
  unsigned preemptions = 2;
  unsigned stale = 1;           // stale reads, beside the preemptions
  uint64_t executions = 10000;  // of the depth-first search
  uint64_t random = 500;        // executions after it
  double seconds = 0;           // 0: as long as it takes
  bool deepens = true;          // by request: see explore.py
  bool reduce = true;           // leave out what has an equal; not for a test of the explorer itself
};

struct Outcome {
  unsigned threads = 0;  // 0: not a search for the table of what was reached
  uint64_t executions = 0;
  int complete = -1;  // all schedules with that many preemptions, and so many stale reads, were run
  unsigned stale = 0;
  uint64_t steps = 0;
  std::string failure, schedule;
};

// All schedules up to the limits, or those of FOLIO_SCHEDULE.
Outcome explore(Machine& machine, const Plan& plan, const Limits& limits = {});

// For each thread and each of its points (beyond the 150th, fewer and fewer): it stops there forever, the others go on.
// Under all schedules with at most so many preemptions, the first kStopMost of them, and under `random` of chance. The
// verdict learns by machine.finished() who is missing.
inline constexpr unsigned kStopMost = 100;
Outcome vanish(Machine& machine, const Plan& plan, unsigned preemptions = 1, uint64_t random = 5);

// The same for all threads at once, at each point of an execution: what the child of a fork finds, if the thread that
// forks is none of them.
Outcome fork_anywhere(Machine& machine, const Plan& plan, unsigned preemptions = 1, uint64_t random = 5);

// Says what was run; fails with the verdict and the schedule.
void expect_sound(const Outcome& outcome, const char* what);
void expect_caught(const Outcome& outcome, const char* what);

}  // namespace explorer
