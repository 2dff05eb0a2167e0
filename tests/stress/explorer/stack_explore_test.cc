// TaggedStack: push, pop and pop_all by up to three threads, among them an attempt at ABA.
#include <gtest/gtest.h>

#include "stress/explorer/search.h"
#include "sync/tagged_stack.h"

namespace explorer {
namespace {

struct alignas(64) Node {
  folio::Atomic<Node*> link;
  folio::Atomic<Node*>& stack_link() { return link; }
};
using Stack = folio::TaggedStack<Node, 6>;

constexpr unsigned kNodes = 6, kWaiting = 3;  // so many in the stack at first
Stack stack;
Node nodes[kNodes];
unsigned owner[kNodes];  // a thread + 1, or 0: whoever pops
unsigned twice;

void own(Node* node, unsigned thread) {
  if (node == nullptr) return;
  unsigned& who = owner[node - nodes];
  if (who != 0) ++twice;
  who = thread + 1;
}
Node* pop(unsigned thread) {
  Node* node = stack.pop();
  own(node, thread);
  return node;
}
void push(Node* node) {
  if (node == nullptr) return;
  owner[node - nodes] = 0;
  stack.push(node);
}
// Which nodes.
unsigned pop_all(unsigned thread) {
  unsigned all = 0;
  for (Node* node = stack.pop_all(); node != nullptr; node = node->link.load(folio::order::relaxed)) {
    own(node, thread);
    all |= 1u << (node - nodes);
  }
  return all;
}

Plan make_plan(std::vector<Body> threads) {
  Plan plan;
  plan.threads = std::move(threads);
  plan.reset = [] {
    while (stack.pop() != nullptr) {
    }
    twice = 0;
    for (unsigned i = 0; i < kNodes; ++i) owner[i] = i < kWaiting ? 0 : 99;
    for (unsigned i = 0; i < kWaiting; ++i) stack.push(&nodes[i]);
  };
  plan.verdict = []() -> std::string {
    if (twice != 0) return "a node was popped twice";
    unsigned waiting = 0, held = 0;
    while (Node* node = stack.pop()) {
      if (owner[node - nodes] != 0) return "a node that a thread holds is in the stack";
      if (++waiting > kNodes) return "the list has a cycle";
    }
    for (const unsigned o : owner) held += o != 0 ? 1 : 0;
    return waiting + held == kNodes ? "" : "nodes are lost";
  };
  return plan;
}

void expect_stack_sound(const char* what, std::vector<Body> threads, unsigned preemptions = 4) {
  Machine machine;
  expect_sound(explore(machine, make_plan(std::move(threads)), {.preemptions = preemptions, .executions = 150000}),
               what);
}

TEST(ExploreStack, PushAndPop) {
  expect_stack_sound("push; push", {[] { push(&nodes[3]); }, [] { push(&nodes[4]); }}, 6);
  expect_stack_sound("pop; pop; pop", {[] { pop(0); }, [] { pop(1); }, [] { pop(2); }});
  expect_stack_sound("push; pop; pop", {[] { push(&nodes[3]); }, [] { pop(1); }, [] { pop(2); }});
}

TEST(ExploreStack, PopAll) {
  expect_stack_sound("pop_all; pop; push", {[] { pop_all(0); }, [] { pop(1); }, [] { push(&nodes[3]); }});
  expect_stack_sound("pop_all; pop_all; push", {[] { pop_all(0); }, [] { pop_all(1); }, [] { push(&nodes[3]); }});
}

// One sleeps in pop; the other pops two and pushes the first again, so that the head looks as before.
TEST(ExploreStack, Aba) {
  const auto pop_two_push_first = [] {
    Node* first = pop(1);
    pop(1);
    push(first);
  };
  expect_stack_sound("pop; pop, pop, push", {[] { pop(0); }, pop_two_push_first}, 6);
  expect_stack_sound("pop; pop, pop, push; push", {[] { pop(0); }, pop_two_push_first, [] { push(&nodes[4]); }}, 3);
  expect_stack_sound("pop; pop_all, push all in another order; pop",
                     {[] { pop(0); },
                      [] {
                        for (unsigned mine = pop_all(1); mine != 0; mine &= mine - 1) push(&nodes[lowest(mine)]);
                      },
                      [] { pop(2); }},
                     3);
}

TEST(VanishStack, PushAndPop) {
  Machine machine;
  Plan plan = make_plan({[] { push(pop(0)); }, [] { push(pop(1)); }, [] { push(&nodes[3]); }});
  const auto sound = plan.verdict;
  plan.verdict = [&]() -> std::string {
    unsigned missing = 0, waiting = 0, held = 0;
    for (unsigned i = 0; i < 3; ++i) missing += machine.finished(i) ? 0 : 1;
    if (missing == 0) return sound();
    while (stack.pop() != nullptr) ++waiting;
    for (const unsigned o : owner) held += o != 0 ? 1 : 0;
    return waiting + held + 1 >= kNodes && twice == 0 ? "" : "more is lost than what the thread had in its hand";
  };
  expect_sound(vanish(machine, plan, 2), "push and pop, with a thread that vanishes");
}

}  // namespace
}  // namespace explorer
