// Which schedules the explorer runs: depth first, random, replayed, and with a thread that vanishes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "stress/explorer/explorer.h"

namespace explorer {

// All schedules with at most `preemptions` preemptions, one after the other: choose() follows the path of this
// execution, next() turns to the next one.
class DepthFirst : public Chooser {
 public:
  explicit DepthFirst(unsigned preemptions) : most_(preemptions) {}

  unsigned choose(unsigned current, uint32_t enabled) override {
    const bool free = current == Machine::kNobody || (enabled >> current & 1) == 0;
    if (depth_ == path_.size()) {
      const unsigned chosen = free ? lowest(enabled) : current;
      const bool more = free || preemptions_ < most_;
      path_.push_back({chosen, enabled, more ? enabled & ~(1u << chosen) : 0});
    }
    const Step& step = path_[depth_++];
    if (step.enabled != enabled) diverged_ = true;  // the reset forgot something, or the code reads a clock
    if (!free && step.chosen != current) ++preemptions_;
    return (enabled >> step.chosen & 1) != 0 ? step.chosen : lowest(enabled);
  }

  bool next() {
    if (depth_ != path_.size()) diverged_ = true;
    while (!path_.empty() && path_.back().untried == 0) path_.pop_back();
    depth_ = 0;
    preemptions_ = 0;
    if (path_.empty()) return false;
    path_.back().chosen = lowest(path_.back().untried);
    path_.back().untried &= path_.back().untried - 1;
    return true;
  }

  bool diverged() const { return diverged_; }

 private:
  struct Step {
    unsigned chosen;
    uint32_t enabled, untried;
  };
  unsigned most_;
  std::vector<Step> path_;
  size_t depth_ = 0;
  unsigned preemptions_ = 0;
  bool diverged_ = false;
};

class RandomWalk : public Chooser {
 public:
  explicit RandomWalk(uint64_t seed) : random_(seed), switch_one_in_(1u << (2 + random_() % 5)) {}
  unsigned choose(unsigned current, uint32_t enabled) override {
    const bool free = current == Machine::kNobody || (enabled >> current & 1) == 0;
    if (!free && random_() % switch_one_in_ != 0) return current;
    uint32_t mask = enabled;
    for (auto n = random_() % static_cast<unsigned>(__builtin_popcount(enabled)); n != 0; --n) mask &= mask - 1;
    return lowest(mask);
  }

 private:
  std::mt19937_64 random_;
  unsigned switch_one_in_;
};

// Probabilistic concurrency testing (Burckhardt et al., 2010): the enabled thread of highest priority runs; at a few
// random points the running one falls to the lowest.
class Pct : public Chooser {
 public:
  Pct(uint64_t seed, uint64_t steps) : random_(seed) {
    for (unsigned& p : priority_) p = 1000 + static_cast<unsigned>(random_() % 1000);
    for (uint64_t& c : change_) c = random_() % (steps + 1);
  }
  unsigned choose(unsigned current, uint32_t enabled) override {
    for (const uint64_t c : change_) {
      if (c == step_ && current != Machine::kNobody) priority_[current] = --bottom_;
    }
    ++step_;
    unsigned best = lowest(enabled);
    for (uint32_t rest = enabled; rest != 0; rest &= rest - 1) {
      if (priority_[lowest(rest)] > priority_[best]) best = lowest(rest);
    }
    return best;
  }

 private:
  std::mt19937_64 random_;
  unsigned priority_[Machine::kThreadsMost];
  uint64_t change_[3];
  unsigned bottom_ = 999;
  uint64_t step_ = 0;
};

class Replay : public Chooser {
 public:
  explicit Replay(const std::string& text) {
    for (const char* at = text.c_str(); *at != '\0';) {
      char* end = nullptr;
      const auto thread = static_cast<uint8_t>(strtoul(at, &end, 10));
      if (*end != '*') break;
      const size_t times = strtoul(end + 1, &end, 10);
      trace_.insert(trace_.end(), times, thread);
      at = end + strspn(end, " ");
    }
  }
  unsigned choose(unsigned, uint32_t enabled) override {
    const unsigned next = step_ < trace_.size() ? trace_[step_] : lowest(enabled);
    ++step_;
    return (enabled >> next & 1) != 0 ? next : lowest(enabled);
  }

 private:
  std::vector<uint8_t> trace_;
  size_t step_ = 0;
};

struct Limits {
  unsigned preemptions = 2;
  uint64_t executions = 60000;  // of the depth-first search
  uint64_t random = 4000;       // executions after it
};

struct Outcome {
  uint64_t executions = 0;
  int complete = -1;  // all schedules with that many preemptions were run
  uint64_t steps = 0;
  std::string failure, schedule;
};

// One execution and its verdict; true to go on.
inline bool try_one(Machine& machine, const Plan& plan, Chooser& chooser, Outcome& outcome) {
  const bool ended = machine.run(plan, chooser);
  ++outcome.executions;
  outcome.steps = std::max(outcome.steps, machine.steps());
  outcome.failure = ended ? plan.verdict() : "does not end";
  if (!outcome.failure.empty()) outcome.schedule = machine.schedule();
  return outcome.failure.empty();
}

inline void search(Machine& machine, const Plan& plan, const Limits& limits, Outcome& outcome) {
  for (unsigned preemptions = 0; preemptions <= limits.preemptions; ++preemptions) {
    DepthFirst paths(preemptions);
    do {
      if (outcome.executions >= limits.executions) return;
      if (!try_one(machine, plan, paths, outcome)) return;
      if (paths.diverged()) {
        outcome.failure = "the same schedule led elsewhere: the explorer's reset is not complete";
        return;
      }
    } while (paths.next());
    outcome.complete = static_cast<int>(preemptions);
  }
}

inline Outcome explore(Machine& machine, const Plan& plan, const Limits& limits = {}) {
  Outcome outcome;
  if (const char* schedule = getenv("FOLIO_SCHEDULE")) {
    Replay replay(schedule);
    try_one(machine, plan, replay, outcome);
    return outcome;
  }
  search(machine, plan, limits, outcome);
  for (uint64_t seed = 1; outcome.failure.empty() && seed <= limits.random; ++seed) {
    RandomWalk walk(seed);
    Pct pct(seed, outcome.steps);
    Chooser& chooser = seed % 2 == 0 ? static_cast<Chooser&>(walk) : pct;
    try_one(machine, plan, chooser, outcome);
  }
  return outcome;
}

// For each thread and each of its points (beyond the 300th, fewer and fewer): it stops there forever, the others go on.
// Under all schedules with at most so many preemptions, the first kStopMost of them, and under `random` of chance. The
// verdict learns by machine.finished() who is missing.
inline constexpr unsigned kStopMost = 400;
inline Outcome vanish(Machine& machine, const Plan& plan, unsigned preemptions = 1, uint64_t random = 20) {
  Outcome outcome;
  const auto threads = static_cast<unsigned>(plan.threads.size());
  for (unsigned victim = 0; victim < threads && outcome.failure.empty(); ++victim) {
    bool came_by = true;
    const auto run = [&](Chooser& chooser) {
      try_one(machine, plan, chooser, outcome);
      came_by = came_by || !machine.finished(victim);
      for (unsigned i = 0; i < threads; ++i) {
        if (i != victim && !machine.finished(i)) outcome.failure = "a thread waits for the one that stopped";
      }
      return outcome.failure.empty();
    };
    for (uint64_t at = 1; came_by && outcome.failure.empty(); at += at < 300 ? 1 : at / 10) {
      machine.stop(victim, at);
      came_by = false;
      DepthFirst paths(preemptions);
      for (unsigned n = 0; n < kStopMost && run(paths) && paths.next(); ++n) {
      }
      for (uint64_t seed = 0; seed < random && outcome.failure.empty(); ++seed) {
        RandomWalk walk(seed);
        run(walk);
      }
    }
    machine.stop(victim, 0);
  }
  return outcome;
}

// Says what was run; fails with the verdict and the schedule.
inline void expect_sound(const Outcome& outcome, const char* what) {
  printf("%-58s %8lu executions, up to %4lu points", what, outcome.executions, outcome.steps);
  if (outcome.complete >= 0) printf(", complete to %d preemptions", outcome.complete);
  printf("\n");
  EXPECT_EQ(outcome.failure, "") << what << "\n  again with FOLIO_SCHEDULE=\"" << outcome.schedule << "\"";
}

inline void expect_caught(const Outcome& outcome, const char* what) {
  printf("%-58s %8lu executions until: %s\n", what, outcome.executions, outcome.failure.c_str());
  EXPECT_NE(outcome.failure, "") << what << ": the explorer must find this fault";
}

}  // namespace explorer
