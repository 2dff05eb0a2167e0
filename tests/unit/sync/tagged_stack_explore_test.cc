// What may happen between a pop's look and its compare_exchange, run there: at each atomic operation of the pop in
// turn, other "threads" pop and push on the same stack.
#include "sync/tagged_stack.h"

#include "unit/explore_at.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

struct alignas(64) Node {
  Atomic<Node*> link;
  Atomic<Node*>& stack_link() { return link; }
};
using Stack = TaggedStack<Node, 6>;

// Pops whatever is left, counting.
unsigned drain(Stack& stack) {
  unsigned n = 0;
  while (stack.pop() != nullptr) ++n;
  return n;
}

TEST(TaggedStackExplore, TheSameTopWithAnotherBelowItIsNotTakenForTheSame) {
  unsigned interrupted = 0;
  for (unsigned point = 1; point < 20; ++point) {
    Node a, b, c;
    Stack stack;
    for (Node* node : {&c, &b, &a}) stack.push(node);
    // ABA: a is on top again, but what was below it is gone.
    Node* others[2] = {};
    const bool ran = explore_at(
        point, [&] { EXPECT_NE(stack.pop(), nullptr); },
        [&] {
          others[0] = stack.pop();
          others[1] = stack.pop();
          if (others[0] != nullptr) stack.push(others[0]);
        });
    if (!ran) break;
    ++interrupted;
    // Three nodes, of which the interrupted pop took one and the interruption kept one.
    EXPECT_EQ(drain(stack), 1u) << "at point " << point;
  }
  EXPECT_GE(interrupted, 3u) << "a pop has at least two loads and an exchange";
}

TEST(TaggedStackExplore, APushThatIsOvertakenKeepsBoth) {
  unsigned interrupted = 0;
  for (unsigned point = 1; point < 20; ++point) {
    Node a, b, c;
    Stack stack;
    stack.push(&a);
    const bool ran = explore_at(
        point, [&] { stack.push(&b); }, [&] { stack.push(&c); });
    if (!ran) break;
    ++interrupted;
    EXPECT_EQ(drain(stack), 3u) << "at point " << point;
  }
  EXPECT_GE(interrupted, 3u);
}

TEST(TaggedStackExplore, PopAllTakesEachNodeOnce) {
  for (unsigned point = 1; point < 20; ++point) {
    Node a, b;
    Stack stack;
    stack.push(&a);
    stack.push(&b);
    unsigned taken = 0;
    const bool ran = explore_at(
        point,
        [&] {
          for (Node* node = stack.pop_all(); node != nullptr; node = node->link.load(order::relaxed)) ++taken;
        },
        [&] { taken += stack.pop() != nullptr ? 1 : 0; });
    if (!ran) break;
    EXPECT_EQ(taken + drain(stack), 2u) << "at point " << point;
  }
}

}  // namespace
