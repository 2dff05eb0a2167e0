// The explorer can fail: it finds the fault in each of these deliberately broken protocols, and none in their sound
// twins.
#include <gtest/gtest.h>

#include <random>

#include "base/atomic.h"
#include "stress/explorer/search.h"

namespace explorer {
namespace {

using folio::Atomic;
namespace order = folio::order;

enum class Fault { kNone, kNoSecondRead, kHintFirst, kReadsOldClass, kWaits };

// Hints in miniature: `word` counts what is there, `hint` says "look here".
template <Fault kFault>
struct Hinted {
  Atomic<uint64_t> word{0}, hint{0};

  void raise() {
    if (hint.load(order::seq_cst) == 0) hint.fetch_or(1, order::seq_cst);
  }
  void give() {
    if (kFault == Fault::kHintFirst) raise();
    word.fetch_add(1, order::seq_cst);
    if (kFault != Fault::kHintFirst) raise();
  }
  uint64_t take_all() {
    if (hint.load(order::seq_cst) == 0) return 0;
    const uint64_t got = word.exchange(0, order::seq_cst);
    if (got != 0) return got;
    hint.fetch_and(0, order::seq_cst);
    if (kFault != Fault::kNoSecondRead && word.load(order::seq_cst) != 0) raise();
    return 0;
  }
};

template <Fault kFault>
Outcome explore_hinted() {
  static Hinted<kFault> hinted;
  static uint64_t got;
  Machine machine;
  Plan plan;
  plan.threads = {[] { hinted.give(); },
                  [] {
                    got += hinted.take_all();
                    got += hinted.take_all();
                  }};
  plan.reset = [] {
    hinted.word.store(0, order::relaxed);
    hinted.hint.store(1, order::relaxed);
    got = 0;
  };
  plan.verdict = []() -> std::string {
    const uint64_t there = hinted.word.load(order::relaxed);
    if (there + got != 1) return "something is lost";
    return there != 0 && hinted.hint.load(order::relaxed) == 0 ? "the hint is lost" : "";
  };
  return explore(machine, plan, {.preemptions = 3, .random = 100});
}

TEST(ExplorerItself, Hints) {
  expect_sound(explore_hinted<Fault::kNone>(), "hints in miniature");
  expect_caught(explore_hinted<Fault::kNoSecondRead>(), "the same, lowered without a second look");
  expect_caught(explore_hinted<Fault::kHintFirst>(), "the same, hint before word");
}

// Classes in miniature: a count is of class 0, 1 or 2, and each class has its hint. Whoever changes the class raises
// the new one's hint; whoever finds a hint stale lowers it.
template <Fault kFault>
struct Classes {
  static constexpr unsigned kAll = 2;
  Atomic<uint64_t> taken{0};
  Atomic<uint64_t> hints{0};

  static unsigned class_of(uint64_t n) { return n == 0 ? 0 : n < kAll ? 1 : 2; }
  void raise(unsigned c) { hints.fetch_or(uint64_t{1} << c, order::seq_cst); }
  void lower(unsigned c) {
    hints.fetch_and(~(uint64_t{1} << c), order::seq_cst);
    if (class_of(taken.load(order::seq_cst)) == c) raise(c);
  }
  void peek(unsigned c) {
    if (class_of(taken.load(order::seq_cst)) != c) lower(c);
  }
  void take() {
    const unsigned peeked = class_of(taken.load(order::seq_cst));
    const uint64_t before = taken.fetch_add(1, order::seq_cst);
    const unsigned old_class = kFault == Fault::kReadsOldClass ? peeked : class_of(before);
    if (class_of(before + 1) != old_class) raise(class_of(before + 1));
  }
  void give() {
    const uint64_t before = taken.fetch_sub(1, order::seq_cst);
    if (class_of(before - 1) != class_of(before)) raise(class_of(before - 1));
  }
};

template <Fault kFault>
Outcome explore_classes() {
  static Classes<kFault> classes;
  Machine machine;
  Plan plan;
  plan.threads = {[] { classes.take(); }, [] { classes.give(); }, [] { classes.peek(1); }};
  plan.reset = [] {
    classes.taken.store(1, order::relaxed);
    classes.hints.store(2, order::relaxed);
  };
  plan.verdict = []() -> std::string {
    const unsigned c = classes.class_of(classes.taken.load(order::relaxed));
    return (classes.hints.load(order::relaxed) >> c & 1) == 0 ? "the class's hint is lost" : "";
  };
  return explore(machine, plan, {.preemptions = 3, .random = 100});
}

TEST(ExplorerItself, Classes) {
  expect_sound(explore_classes<Fault::kNone>(), "classes in miniature");
  expect_caught(explore_classes<Fault::kReadsOldClass>(), "the same, compared with the class that was looked for");
}

// A stack whose head has no tag: ABA.
struct Node {
  Atomic<Node*> next{nullptr};
};
struct PlainStack {
  Atomic<Node*> head{nullptr};

  void push(Node* node) {
    Node* top = head.load(order::relaxed);
    do {
      node->next.store(top, order::relaxed);
    } while (!head.compare_exchange(top, node, order::release));
  }
  Node* pop() {
    Node* top = head.load(order::acquire);
    while (top != nullptr && !head.compare_exchange(top, top->next.load(order::relaxed), order::acquire)) {
    }
    return top;
  }
};

TEST(ExplorerItself, StackWithoutTag) {
  static PlainStack stack;
  static Node nodes[2];
  static Node* held[3];
  Machine machine;
  Plan plan;
  plan.threads = {[] { held[0] = stack.pop(); },
                  [] {
                    Node* first = stack.pop();
                    held[1] = stack.pop();
                    if (first != nullptr) stack.push(first);
                  }};
  plan.reset = [] {
    stack.head.store(nullptr, order::relaxed);
    stack.push(&nodes[1]);
    stack.push(&nodes[0]);
    held[0] = held[1] = nullptr;
  };
  plan.verdict = []() -> std::string {
    unsigned seen = 0;
    for (Node* n = stack.head.load(order::relaxed); n != nullptr; n = n->next.load(order::relaxed)) {
      for (Node* h : held) seen += n == h ? 1 : 0;
    }
    return seen != 0 ? "a node that a thread holds is in the stack" : "";
  };
  expect_caught(explore(machine, plan, {.preemptions = 2, .random = 0}), "a stack without tags");
}

// A lock that is waited for: fine as long as everybody goes on, found as soon as one does not.
template <Fault kFault>
Outcome vanish_counting() {
  static Atomic<uint64_t> lock{0}, count{0};
  Machine machine;
  Plan plan;
  const Body body = [] {
    while (kFault == Fault::kWaits && lock.exchange(1, order::acquire) != 0) {
    }
    count.fetch_add(1, order::relaxed);
    lock.store(0, order::release);
  };
  plan.threads = {body, body};
  plan.reset = [] {
    lock.store(0, order::relaxed);
    count.store(0, order::relaxed);
  };
  plan.verdict = [] { return std::string(count.load(order::relaxed) == 0 ? "nobody counted" : ""); };
  return vanish(machine, plan);
}

TEST(ExplorerItself, Waiting) {
  expect_sound(vanish_counting<Fault::kNone>(), "a counter, with a thread that vanishes");
  expect_caught(vanish_counting<Fault::kWaits>(), "the same behind a lock");
}

// The number of schedules is known where threads have one point each: with enough preemptions, all orders.
TEST(ExplorerItself, RunsEverySchedule) {
  static Atomic<uint64_t> word{0};
  static std::vector<std::string> seen;
  static std::string order_of_steps;
  Machine machine;
  Plan plan;
  for (const char name : {'a', 'b'}) {
    plan.threads.push_back([name] {
      for (unsigned i = 0; i < 3; ++i) {
        word.exchange(1, order::relaxed);
        const Ghost ghost;
        order_of_steps += name;
      }
    });
  }
  seen.clear();
  plan.reset = [] { order_of_steps.clear(); };
  plan.verdict = [] {
    seen.push_back(order_of_steps);
    return std::string();
  };
  EXPECT_EQ(explore(machine, plan, {.preemptions = 6, .random = 0}).failure, "");
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_EQ(seen.size(), 20u);  // 6 choose 3
}

TEST(ExplorerItself, FindsResetsThatForget) {
  static Atomic<uint64_t> word{0};
  Machine machine;
  Plan plan;
  plan.threads = {[] {
                    if (word.fetch_add(1, order::relaxed) % 2 == 0) word.load(order::relaxed);
                  },
                  [] { word.load(order::relaxed); }};
  plan.reset = [] {};
  plan.verdict = [] { return std::string(); };
  expect_caught(explore(machine, plan), "a reset that forgets");
}

// ---- Memory ----

// What two threads see of each other's stores: the classic shapes, each with the orders that it needs and with one that
// is too weak. `verdict` looks at what was read.
struct Litmus {
  std::vector<Body> threads;
  std::function<bool()> forbidden;
};
Atomic<uint64_t> x{0}, y{0}, z{0};
uint64_t data, got[4];

Outcome explore_litmus(const Litmus& litmus, const Limits& limits = {}) {
  Machine machine;
  Plan plan;
  plan.threads = litmus.threads;
  plan.reset = [] {
    for (auto* word : {&x, &y, &z}) word->store(0, order::relaxed);
    data = 0;
    for (uint64_t& g : got) g = 0;
  };
  plan.verdict = [&] { return std::string(litmus.forbidden() ? "what is forbidden was seen" : ""); };
  return explore(machine, plan, limits);
}

Outcome message_passing(int publish, int peek) {
  return explore_litmus({{[=] {
                            x.store(1, order::relaxed);
                            y.store(1, publish);
                          },
                          [=] {
                            got[0] = y.load(peek);
                            got[1] = x.load(order::relaxed);
                          }},
                         [] { return got[0] == 1 && got[1] == 0; }});
}

TEST(ExplorerMemory, MessagePassing) {
  expect_sound(message_passing(order::release, order::acquire), "message passing: release, acquire");
  expect_caught(message_passing(order::relaxed, order::acquire), "message passing: relaxed, acquire");
  expect_caught(message_passing(order::release, order::relaxed), "message passing: release, relaxed");
}

Outcome store_buffering(int write, int read) {
  return explore_litmus({{[=] {
                            x.store(1, write);
                            got[0] = y.load(read);
                          },
                          [=] {
                            y.store(1, write);
                            got[1] = x.load(read);
                          }},
                         [] { return got[0] == 0 && got[1] == 0; }});
}

TEST(ExplorerMemory, StoreBuffering) {
  expect_sound(store_buffering(order::seq_cst, order::seq_cst), "store buffering: seq_cst");
  expect_caught(store_buffering(order::release, order::seq_cst), "store buffering: release, seq_cst");
  expect_caught(store_buffering(order::seq_cst, order::acquire), "store buffering: seq_cst, acquire");
}

// What is published with a word that others change before it is read.
Outcome release_sequence(bool plain_store) {
  return explore_litmus({{[] {
                            data = 1;
                            x.store(1, order::release);
                          },
                          [=] {
                            uint64_t one = 1;
                            if (plain_store) {
                              if (x.load(order::relaxed) == 1) x.store(2, order::relaxed);
                            } else {
                              x.compare_exchange(one, 2, order::relaxed);
                            }
                          },
                          [] {
                            if (x.load(order::acquire) == 2) got[0] = data;
                          }},
                         [] { return false; }});
}

TEST(ExplorerMemory, ReleaseSequence) {
  expect_sound(release_sequence(false), "a release sequence, through a read-modify-write");
  expect_caught(release_sequence(true), "the same, through a store");
}

// A compare_exchange that fails may have read an old value, and has acquired nothing.
TEST(ExplorerMemory, FailedCompareExchange) {
  const auto run = [](bool again) {
    return explore_litmus({{[] {
                              data = 1;
                              x.store(1, order::release);
                            },
                            [=] {
                              uint64_t found = 7;
                              x.compare_exchange(found, 8, order::acq_rel);
                              if (again) found = x.load(order::acquire);
                              if (found == 1) got[0] = data;
                            }},
                           [] { return false; }});
  };
  expect_sound(run(true), "a failed compare_exchange, and an acquiring load");
  expect_caught(run(false), "a failed compare_exchange that is relied on");
  expect_caught(explore_litmus({{[] {
                                   y.store(1, order::release);
                                   x.store(1, order::release);
                                 },
                                 [] {
                                   got[0] = x.load(order::acquire);
                                   uint64_t found = 7;
                                   x.compare_exchange(found, 8, order::acq_rel);
                                   y.compare_exchange(got[1], 0, order::relaxed);
                                   got[2] = found;
                                 }},
                                [] { return got[0] == 0 && got[1] == 1 && got[2] == 0; }}),
                "a failed compare_exchange that finds an old value");
}

TEST(ExplorerMemory, Coherence) {
  expect_sound(explore_litmus({{[] {
                                  x.store(1, order::relaxed);
                                  x.store(2, order::relaxed);
                                },
                                [] {
                                  got[0] = x.load(order::relaxed);
                                  got[1] = x.load(order::relaxed);
                                }},
                               [] { return got[0] > got[1]; }},
                              {.preemptions = 3, .stale = 3}),
               "two reads of one word");
}

// Independent reads of independent writes: the two readers agree only if all is sequentially consistent.
Outcome independent_reads(int strength) {
  const int read = strength == order::seq_cst ? order::seq_cst : order::acquire;
  const int write = strength == order::seq_cst ? order::seq_cst : order::release;
  return explore_litmus({{[=] { x.store(1, write); }, [=] { y.store(1, write); },
                          [=] {
                            got[0] = x.load(read);
                            got[1] = y.load(read);
                          },
                          [=] {
                            got[2] = y.load(read);
                            got[3] = x.load(read);
                          }},
                         [] { return got[0] == 1 && got[1] == 0 && got[2] == 1 && got[3] == 0; }},
                        {.preemptions = 3, .stale = 2});
}

TEST(ExplorerMemory, IndependentReads) {
  expect_sound(independent_reads(order::seq_cst), "independent reads: seq_cst");
  expect_caught(independent_reads(order::acq_rel), "independent reads: release, acquire");
}

// ---- Races ----

TEST(ExplorerRaces, PlainAccesses) {
  const auto run = [](int publish, bool both_write) {
    return explore_litmus({{[=] {
                              data = 1;
                              x.store(1, publish);
                            },
                            [=] {
                              if (both_write || x.load(order::acquire) == 1) ++data;
                            }},
                           [] { return false; }});
  };
  expect_sound(run(order::release, false), "a plain word that is published");
  expect_caught(run(order::relaxed, false), "a plain word that is not");
  expect_caught(run(order::release, true), "two that write a plain word");
}

TEST(ExplorerRaces, AtomicAndPlain) {
  expect_caught(
      explore_litmus({{[] { x.store(1, order::release); }, [] { got[0] = *reinterpret_cast<volatile uint64_t*>(&x); }},
                      [] { return false; }}),
      "a word that one reads plainly while another stores it");
}

// ---- Reduction ----

constexpr unsigned kRandomThreads = 3, kRandomSteps = 3;

struct RandomStep {
  Atomic<uint64_t>* word;
  unsigned kind;
  int strength;
  uint64_t value;

  // Returns what it read; 0 for a store.
  uint64_t run() const {
    const bool strict = strength == order::seq_cst, weak = strength == order::relaxed;
    const int on_load = strict || weak ? strength : order::acquire;
    const int on_store = strict || weak ? strength : order::release;
    uint64_t read = 0;
    if (kind == 0) read = word->load(on_load);
    if (kind == 1) word->store(value, on_store);
    if (kind == 2) read = word->exchange(value, strength);
    if (kind == 3) word->compare_exchange(read, value, strength);
    return read;
  }
};
using RandomProgram = std::vector<std::vector<RandomStep>>;  // by thread

RandomProgram make_program(unsigned seed) {
  std::mt19937 random(seed);
  RandomProgram program(kRandomThreads);
  uint64_t value = 1;
  for (auto& steps : program) {
    for (unsigned i = 0; i < kRandomSteps; ++i) {
      Atomic<uint64_t>* const words[] = {&x, &y, &z};
      const int strengths[] = {order::relaxed, order::acq_rel, order::seq_cst};
      steps.push_back({words[random() % 3], static_cast<unsigned>(random() % 4), strengths[random() % 3], value++});
    }
  }
  return program;
}

// All outcomes that the search finds, each once: what the steps have read, and what the words hold at the end.
std::vector<std::vector<uint64_t>> outcomes_of(const RandomProgram& program, bool reduce) {
  static uint64_t read[kRandomThreads][kRandomSteps];
  static std::vector<std::vector<uint64_t>> outcomes;
  outcomes.clear();
  Plan plan;
  for (unsigned t = 0; t < kRandomThreads; ++t) {
    plan.threads.push_back([&program, t] {
      for (unsigned i = 0; i < kRandomSteps; ++i) {
        read[t][i] = 0;
        read[t][i] = program[t][i].run();
      }
    });
  }
  plan.reset = [] {
    for (auto* word : {&x, &y, &z}) word->store(0, order::relaxed);
  };
  plan.verdict = [] {
    std::vector<uint64_t> all;
    for (auto& thread : read) all.insert(all.end(), thread, thread + kRandomSteps);
    for (auto* word : {&x, &y, &z}) all.push_back(word->load(order::relaxed));
    outcomes.push_back(all);
    return std::string();
  };
  const Limits limits = {
      .preemptions = 2, .stale = 1, .executions = ~uint64_t{0}, .random = 0, .deepens = false, .reduce = reduce};
  Machine machine;
  EXPECT_EQ(explore(machine, plan, limits).failure, "");
  std::sort(outcomes.begin(), outcomes.end());
  outcomes.erase(std::unique(outcomes.begin(), outcomes.end()), outcomes.end());
  return outcomes;
}

// What is left out has an equal that is run: the outcomes are those of a search that leaves nothing out.
TEST(ExplorerReduction, LosesNoOutcome) {
  constexpr unsigned kPrograms = 300;
  unsigned several = 0;
  for (unsigned seed = 1; seed <= kPrograms; ++seed) {
    const RandomProgram program = make_program(seed);
    const auto all = outcomes_of(program, false);
    ASSERT_EQ(outcomes_of(program, true), all) << "program " << seed;
    several += all.size() > 20 ? 1 : 0;
  }
  EXPECT_GT(several, kPrograms / 2);
}

}  // namespace
}  // namespace explorer
