#include "sync/tagged_stack.h"

#include <atomic>
#include <thread>

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

struct alignas(64) Node {
  Atomic<Node*> link;
  std::atomic<int> owners{0};
  unsigned number = 0;  // plain: the stack must order it

  Atomic<Node*>& stack_link() { return link; }
};
using Stack = TaggedStack<Node, 6>;

std::vector<unsigned> numbers(Node* list) {
  std::vector<unsigned> all;
  for (; list != nullptr; list = list->link.load(order::relaxed)) all.push_back(list->number);
  return all;
}

class TaggedStackTest : public ::testing::Test {
 protected:
  TaggedStackTest() : nodes_(8) {
    for (unsigned i = 0; i < nodes_.size(); ++i) nodes_[i].number = i;
  }
  std::vector<Node> nodes_;
  Stack stack_;
};

TEST_F(TaggedStackTest, ZeroFilledItIsEmpty) {
  EXPECT_TRUE(stack_.peek_empty());
  EXPECT_EQ(stack_.pop(), nullptr);
  EXPECT_EQ(stack_.pop_all(), nullptr);
  EXPECT_EQ(stack_.pop(), nullptr);
}

TEST_F(TaggedStackTest, LastInFirstOut) {
  for (Node& node : nodes_) stack_.push(&node);
  EXPECT_FALSE(stack_.peek_empty());
  for (size_t i = nodes_.size(); i-- > 0;) EXPECT_EQ(stack_.pop(), &nodes_[i]);
  EXPECT_EQ(stack_.pop(), nullptr);
  EXPECT_TRUE(stack_.peek_empty());
}

TEST_F(TaggedStackTest, PopAllIsTheWholeListTopFirst) {
  for (unsigned i = 0; i < 4; ++i) stack_.push(&nodes_[i]);
  EXPECT_EQ(numbers(stack_.pop_all()), (std::vector<unsigned>{3, 2, 1, 0}));
  EXPECT_TRUE(stack_.peek_empty());
  stack_.push(&nodes_[5]);
  EXPECT_EQ(numbers(stack_.pop_all()), (std::vector<unsigned>{5}));
}

TEST_F(TaggedStackTest, AlignmentAndAddressSpaceLeaveTheTagItsBits) {
  EXPECT_EQ(Stack::kTagBits, 64 - (arch::kAddressBits - 6));
  EXPECT_EQ((TaggedStack<Node, 9>::kTagBits), Stack::kTagBits + 3);
  Node high;  // the stack lies near the top of the address space
  stack_.push(&high);
  stack_.push(&nodes_[0]);
  EXPECT_EQ(stack_.pop(), &nodes_[0]);
  EXPECT_EQ(stack_.pop(), &high);
}

TEST_F(TaggedStackTest, TheTagWrapsWithoutTouchingTheAddress) {
  constexpr uint64_t kPops = (uint64_t{1} << Stack::kTagBits) + 10;
  stack_.push(&nodes_[0]);
  for (uint64_t i = 0; i < kPops; ++i) {
    stack_.push(&nodes_[1]);
    Node* const node = stack_.pop();
    if (node != &nodes_[1]) ASSERT_EQ(node, &nodes_[1]) << "after " << i;
  }
  EXPECT_EQ(stack_.pop(), &nodes_[0]);
  EXPECT_EQ(stack_.pop(), nullptr);
}

TEST(TaggedStackThreads, EveryNodeHasOneOwnerAndNoneIsLost) {
  constexpr unsigned kThreads = 4, kNodes = 16;
  static Node nodes[kNodes];
  static Stack stacks[2];
  for (unsigned i = 0; i < kNodes; ++i) stacks[i % 2].push(&nodes[i]);
  std::atomic<unsigned> doubles{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      const auto own = [&](Node* node) {
        if (node->owners.fetch_add(1, std::memory_order_relaxed) != 0) ++doubles;
        ++node->number;
        node->owners.fetch_sub(1, std::memory_order_relaxed);
      };
      for (unsigned i = 0; i < rounds(200000); ++i) {
        Stack& from = stacks[random() % 2];
        Stack& to = stacks[random() % 2];
        if (random() % 16 != 0) {
          Node* node = from.pop();
          if (node == nullptr) continue;
          own(node);
          to.push(node);
          continue;
        }
        Node* next = nullptr;
        for (Node* node = from.pop_all(); node != nullptr; node = next) {
          next = node->link.load(order::relaxed);
          own(node);
          to.push(node);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(doubles, 0u);
  unsigned left = 0;
  for (Stack& stack : stacks) {
    while (stack.pop() != nullptr) ++left;
  }
  EXPECT_EQ(left, kNodes);
}

}  // namespace
