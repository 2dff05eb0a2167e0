// The explorer can fail: it finds the fault in each of these deliberately broken protocols, and none in their sound
// twins.
#include <gtest/gtest.h>

#include "base/atomic.h"
#include "stress/explorer/search.h"

namespace explorer {
namespace {

using folio::Atomic;
namespace order = folio::order;

enum class Fault { kNone, kNoSecondLook, kHintFirst, kLooksAtOldClass, kWaits };

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
    if (kFault != Fault::kNoSecondLook && word.load(order::seq_cst) != 0) raise();
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
  expect_caught(explore_hinted<Fault::kNoSecondLook>(), "the same, lowered without a second look");
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
  void look(unsigned c) {
    if (class_of(taken.load(order::seq_cst)) != c) lower(c);
  }
  void take() {
    const unsigned looked_like = class_of(taken.load(order::seq_cst));
    const uint64_t before = taken.fetch_add(1, order::seq_cst);
    const unsigned old_class = kFault == Fault::kLooksAtOldClass ? looked_like : class_of(before);
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
  plan.threads = {[] { classes.take(); }, [] { classes.give(); }, [] { classes.look(1); }};
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
  expect_caught(explore_classes<Fault::kLooksAtOldClass>(), "the same, compared with the class that was looked for");
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
        word.fetch_add(1, order::relaxed);
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

}  // namespace
}  // namespace explorer
