#include "stress/explorer/search.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>

namespace explorer {

namespace {

// All schedules with at most so many preemptions and stale reads, one after the other: choose() and read() follow the
// path of this execution, next() turns to the next one.
//
// Of schedules that differ only in the order of operations that do not conflict (on one location, one of them a write),
// one is run:
//   asleep   a thread that was preempted sleeps until somebody does what conflicts with the operation that it stands
//            before. Were it to go on while it sleeps, it could as well have been preempted after that operation.
//   marked   a preemption is tried only where, in the executions without it, somebody else later did something that
//            conflicts with the operation, with nothing between them that orders the two.
// Both keep the number of preemptions: what is left out has an equal, with no more preemptions, that is run. What runs
// after a thread has finished is always tried.
class DepthFirst : public Chooser {
 public:
  DepthFirst(unsigned preemptions, unsigned stale, bool reduce = true)
      : most_(preemptions), stale_most_(stale), reduces_(reduce) {}

  unsigned choose(unsigned current, uint32_t enabled) override {
    const bool free = current == kNobody || (enabled >> current & 1) == 0;
    const uint32_t awake = enabled & ~asleep_;
    if (depth_ == path_.size()) {
      if (awake == 0) return kNobody;
      const unsigned chosen = free ? lowest(awake) : current;
      const uint32_t others = awake & ~(1u << chosen);
      const bool may_preempt = !free && preemptions_ < most_;
      path_.push_back({enabled, free ? others : 0, may_preempt ? others : 0, static_cast<uint8_t>(chosen),
                       static_cast<uint8_t>(chosen), !reduces_});
    }
    step_ = depth_++;
    const Step& step = path_[step_];
    if (step.enabled != enabled || (enabled >> step.chosen & 1) == 0) {
      diverged_ = true;  // the reset forgot something, or the code reads a clock
      return kNobody;
    }
    if (!free && step.chosen != current) {
      ++preemptions_;
      if (reduces_) asleep_ |= 1u << current;
    }
    return step.chosen;
  }

  unsigned read(unsigned choices) override {
    if (depth_ == path_.size()) {
      const uint32_t others = stale_reads_ < stale_most_ ? (1u << std::min(choices, 31u)) - 2 : 0;
      path_.push_back({kReadStep | choices, others, 0, 0, 0, false});
    }
    const Step& step = path_[depth_++];
    if (step.enabled != (kReadStep | choices)) {
      diverged_ = true;
      return 0;
    }
    if (step.chosen != 0) ++stale_reads_;
    return step.chosen;
  }

  void comes_to(unsigned thread, uintptr_t word, const Touch& touch) override {
    next_word_[thread] = word;
    next_[thread] = touch;
  }

  void touched(unsigned thread, const Touch& touch) override {
    Location& l = *touch.location;
    for (uint32_t rest = asleep_; rest != 0; rest &= rest - 1) {
      const unsigned t = lowest(rest);
      if (next_word_[t] == l.word && conflict(touch, next_[t])) asleep_ &= ~(1u << t);
    }
    Clock& clock = clocks_[thread];
    const bool writes = touch.writes || (touch.strict && touch.stale);
    for (unsigned t = 0; t < kThreadsMost; ++t) {
      if (t == thread) continue;
      const auto& others = l.touches[t];
      for (size_t i = others.size(); i-- != 0 && others[i].number > clock.of[t];) {
        if (writes || others[i].writes) path_[others[i].step].marked = true;
      }
    }
    const uint32_t number = ++clock.of[thread];
    clock.join(l.writers);
    if (writes) clock.join(l.readers);
    (writes ? l.writers : l.readers).join(clock);
    l.touches[thread].push_back({number, static_cast<uint32_t>(step_), writes});
  }

  bool next() {
    asleep_ = 0;
    preemptions_ = stale_reads_ = 0;
    depth_ = 0;
    for (Clock& clock : clocks_) clock = {};
    while (!path_.empty()) {
      Step& step = path_.back();
      if (step.marked && step.chosen == step.first) {
        step.untried |= step.others;
        step.others = 0;
      }
      if (step.untried != 0) break;
      path_.pop_back();
    }
    if (path_.empty()) return false;
    Step& step = path_.back();
    step.chosen = static_cast<uint8_t>(lowest(step.untried));
    step.untried &= step.untried - 1;
    return true;
  }

  bool diverged() const { return diverged_; }

 private:
  static constexpr uint32_t kReadStep = 1u << 31;

  struct Step {
    uint32_t enabled;  // or kReadStep and how many choices
    uint32_t untried;
    uint32_t others;  // to be tried if marked
    uint8_t first, chosen;
    bool marked;
  };

  static bool conflict(const Touch& done, const Touch& next) {
    return done.writes || next.writes || (done.strict && done.stale && next.strict);
  }

  unsigned most_, stale_most_;
  bool reduces_;
  std::vector<Step> path_;
  size_t depth_ = 0, step_ = 0;
  unsigned preemptions_ = 0, stale_reads_ = 0;
  uint32_t asleep_ = 0;
  uintptr_t next_word_[kThreadsMost] = {};
  Touch next_[kThreadsMost] = {};
  Clock clocks_[kThreadsMost];
  bool diverged_ = false;
};

unsigned random_of(std::mt19937_64& random, uint32_t mask) {
  for (auto n = random() % static_cast<unsigned>(__builtin_popcount(mask)); n != 0; --n) mask &= mask - 1;
  return lowest(mask);
}

unsigned random_read(std::mt19937_64& random, unsigned choices) {
  return random() % 4 == 0 ? static_cast<unsigned>(random() % choices) : 0;
}

class RandomWalk : public Chooser {
 public:
  explicit RandomWalk(uint64_t seed) : random_(seed), switch_one_in_(1u << (2 + random_() % 5)) {}
  unsigned choose(unsigned current, uint32_t enabled) override {
    const bool free = current == kNobody || (enabled >> current & 1) == 0;
    return !free && random_() % switch_one_in_ != 0 ? current : random_of(random_, enabled);
  }
  unsigned read(unsigned choices) override { return random_read(random_, choices); }

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
      if (c == step_ && current != kNobody) priority_[current] = --bottom_;
    }
    ++step_;
    unsigned best = lowest(enabled);
    for (uint32_t rest = enabled; rest != 0; rest &= rest - 1) {
      if (priority_[lowest(rest)] > priority_[best]) best = lowest(rest);
    }
    return best;
  }
  unsigned read(unsigned choices) override { return random_read(random_, choices); }

 private:
  std::mt19937_64 random_;
  unsigned priority_[kThreadsMost];
  uint64_t change_[3];
  unsigned bottom_ = 999;
  uint64_t step_ = 0;
};

// A schedule as a failure printed it.
class Replay : public Chooser {
 public:
  explicit Replay(const char* at) {
    while (*at != '\0') {
      char* end = nullptr;
      if (*at == '~') {
        reads_.resize(trace_.size());
        reads_.back() = static_cast<unsigned>(strtoul(at + 1, &end, 10));
      } else {
        const auto thread = static_cast<uint8_t>(strtoul(at, &end, 10));
        if (*end != '*') break;
        trace_.insert(trace_.end(), strtoul(end + 1, &end, 10), thread);
      }
      at = end + strspn(end, " ");
    }
    reads_.resize(trace_.size());
  }
  unsigned choose(unsigned, uint32_t enabled) override {
    const unsigned next = step_ < trace_.size() ? trace_[step_] : lowest(enabled);
    ++step_;
    return (enabled >> next & 1) != 0 ? next : lowest(enabled);
  }
  unsigned read(unsigned choices) override {
    return step_ != 0 && step_ <= reads_.size() ? std::min(reads_[step_ - 1], choices - 1) : 0;
  }

 private:
  std::vector<uint8_t> trace_;
  std::vector<unsigned> reads_;  // what the step's load reads
  size_t step_ = 0;
};

// One execution and its verdict; true to go on.
bool try_one(Machine& machine, const Plan& plan, Chooser& chooser, Outcome& outcome) {
  const Machine::End end = machine.run(plan, chooser);
  ++outcome.executions;
  outcome.steps = std::max(outcome.steps, machine.steps());
  outcome.failure = machine.race();
  if (outcome.failure.empty() && end == Machine::End::kOverrun) outcome.failure = "does not end";
  if (outcome.failure.empty() && end == Machine::End::kWhole) outcome.failure = plan.verdict();
  if (!outcome.failure.empty()) outcome.schedule = machine.schedule();
  return outcome.failure.empty();
}

double now();

// Most of what threads share, so that few executions have to be run again.
void learn(Machine& machine, const Plan& plan, Outcome& outcome) {
  constexpr uint64_t kWalks = 50;
  for (uint64_t seed = 1; seed <= kWalks && outcome.failure.empty(); ++seed) {
    RandomWalk walk(seed);
    try_one(machine, plan, walk, outcome);
  }
}

void search(Machine& machine, const Plan& plan, const Limits& limits, Outcome& outcome) {
  outcome.stale = limits.stale;
  if (limits.reduce && limits.random != 0) learn(machine, plan, outcome);
  if (!outcome.failure.empty()) return;
  const double start = now();
  for (unsigned preemptions = 0; preemptions <= limits.preemptions; ++preemptions) {
    // What takes long up to two does not come to the end of three.
    const double end = limits.seconds == 0 ? 0 : start + (preemptions <= 2 ? limits.seconds : limits.seconds / 4);
    const DepthFirst anew(preemptions, limits.stale, limits.reduce);
    DepthFirst paths = anew;
    for (bool more = true; more;) {
      if (outcome.executions >= limits.executions) return;
      if (end != 0 && outcome.executions % 64 == 0 && now() > end) return;
      if (!try_one(machine, plan, paths, outcome)) return;
      if (paths.diverged()) {
        outcome.failure = "the same schedule led elsewhere: the explorer's reset is not complete";
        return;
      }
      if (machine.learned()) {
        paths = anew;
      } else {
        more = paths.next();
      }
    }
    outcome.complete = static_cast<int>(preemptions);
  }
}

// For tests/stress/explorer/explore.py, FOLIO_EXPLORE_SECONDS: so long for each scenario, in place of so many
// executions, and to three preemptions at least, for which there is a quarter of the time.
Limits deeper(Limits limits) {
  const char* const seconds = getenv("FOLIO_EXPLORE_SECONDS");
  if (seconds == nullptr || !limits.deepens) return limits;
  limits.seconds = atof(seconds);
  limits.executions = ~uint64_t{0};
  limits.random = std::min(limits.random, uint64_t{100});
  limits.preemptions = std::max(limits.preemptions, 3u);
  return limits;
}

double now() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);  // whatever else the machine does
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace

Outcome explore(Machine& machine, const Plan& plan, const Limits& asked) {
  Outcome outcome;
  outcome.threads = static_cast<unsigned>(plan.threads.size());
  const Limits limits = deeper(asked);
  machine.set_points(limits.reduce ? Machine::Points::kShared : Machine::Points::kAll);
  if (const char* schedule = getenv("FOLIO_SCHEDULE")) {
    machine.set_points(Machine::Points::kAll);
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

Outcome vanish(Machine& machine, const Plan& plan, unsigned preemptions, uint64_t random) {
  Outcome outcome;
  const auto threads = static_cast<unsigned>(plan.threads.size());
  machine.set_points(Machine::Points::kWrites);
  learn(machine, plan, outcome);
  for (unsigned victim = 0; victim < threads && outcome.failure.empty(); ++victim) {
    bool came_by = true, learned = false;
    uint64_t at = 1;
    const auto run = [&](Chooser& chooser) {
      const bool sound = try_one(machine, plan, chooser, outcome);
      came_by = came_by || machine.points(victim) >= at;
      learned = learned || machine.learned();
      return sound && !machine.learned();
    };
    for (; came_by && outcome.failure.empty(); at += learned ? 0 : at < 150 ? 1 : at / 10) {
      machine.stop(victim, at);
      came_by = learned = false;
      DepthFirst paths(preemptions, 0);
      for (unsigned n = 0; n < kStopMost && run(paths) && paths.next(); ++n) {
      }
      for (uint64_t seed = 0; seed < random && outcome.failure.empty(); ++seed) {
        RandomWalk walk(seed);
        run(walk);
      }
      came_by = came_by || learned;
    }
    machine.stop(victim, 0);
  }
  return outcome;
}

Outcome fork_anywhere(Machine& machine, const Plan& plan, unsigned preemptions, uint64_t random) {
  Outcome outcome;
  machine.set_points(Machine::Points::kWrites);
  learn(machine, plan, outcome);
  bool came_by = true;
  for (uint64_t at = 1; came_by && outcome.failure.empty(); at += at < 300 ? 1 : at / 50) {
    machine.stop_all(at);
    came_by = false;
    const auto run = [&](Chooser& chooser) {
      const bool sound = try_one(machine, plan, chooser, outcome);
      came_by = came_by || machine.steps() >= at;
      return sound;
    };
    DepthFirst paths(preemptions, 0);
    for (unsigned n = 0; n < kStopMost && run(paths) && (machine.learned() || paths.next()); ++n) {
      if (machine.learned()) paths = DepthFirst(preemptions, 0);
    }
    for (uint64_t seed = 0; seed < random && outcome.failure.empty(); ++seed) {
      RandomWalk walk(at * random + seed);
      run(walk);
    }
  }
  machine.stop_all(0);
  return outcome;
}

// For tests/stress/explorer/explore.py: a line of its table.
static void write_result(const Outcome& outcome, const char* what) {
  const char* const path = getenv("FOLIO_EXPLORE_RESULTS");
  if (path == nullptr || outcome.threads == 0) return;
  FILE* const file = fopen(path, "a");
  if (file == nullptr) abort();
  const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
  fprintf(file, "%s\t%s\t%u\t%lu\t%d\t%u\t%lu\n", test->test_suite_name(), what, outcome.threads, outcome.steps,
          outcome.complete, outcome.stale, outcome.executions);
  fclose(file);
}

void expect_sound(const Outcome& outcome, const char* what) {
  printf("%-58s %8lu executions, up to %4lu points", what, outcome.executions, outcome.steps);
  if (outcome.complete >= 0) printf(", complete to %d preemptions, %u stale reads", outcome.complete, outcome.stale);
  printf("\n");
  write_result(outcome, what);
  EXPECT_EQ(outcome.failure, "") << what << "\n  again with FOLIO_SCHEDULE=\"" << outcome.schedule << "\"";
}

void expect_caught(const Outcome& outcome, const char* what) {
  printf("%-58s %8lu executions until: %s\n", what, outcome.executions, outcome.failure.c_str());
  EXPECT_NE(outcome.failure, "") << what << ": the explorer must find this fault";
}

}  // namespace explorer
