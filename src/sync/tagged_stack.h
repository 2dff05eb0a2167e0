// TaggedStack: a lock-free stack (Treiber) of nodes that are never unmapped. The only home of this protocol; the depot,
// the pool of empty magazines, free huge blocks and idle thread caches are such stacks.
//
//   head: | address >> kAlignShift | tag |     one 64-bit word
//
// The tag counts pops and takes the place of the address bits that alignment and the user address space leave over: 27
// bits on x86-64 for magazines. ABA needs a pop that sleeps through an exact multiple of 2^27 other pops and then finds
// the same node on top.
//
// Node provides stack_link(), an Atomic<Node*> that the stack may use while the node waits in it.
//
// Linearization: push and pop at their successful compare_exchange. A pop reads the link of a node that another thread
// may have popped and reused: the value may be nonsense, but the memory is mapped, and the compare_exchange then fails.
#pragma once

#include <stdint.h>

#include "arch/arch.h"
#include "base/atomic.h"

namespace folio {

template <class Node, unsigned kAlignShift>
class TaggedStack {
 public:
  static constexpr unsigned kTagBits = 64 - (arch::kAddressBits - kAlignShift);

  void push(Node* node) {
    uint64_t head = head_.load(order::relaxed);  // relaxed: only a guess, the compare_exchange checks it
    do {
      node->stack_link().store(node_of(head), order::relaxed);  // relaxed: published by the exchange below
      // [stack-handoff] release: publishes the node's contents; pairs with pop and pop_all.
    } while (!head_.compare_exchange(head, pack(node, head), order::release));
  }

  // The node on top, or null.
  Node* pop() {
    // [stack-handoff] acquire: pairs with push; the link below is the one that was published with this head.
    uint64_t head = head_.load(order::acquire);
    for (;;) {
      Node* node = node_of(head);
      if (node == nullptr) return nullptr;
      Node* next = node->stack_link().load(order::relaxed);  // relaxed: validated by the compare_exchange
      // Relaxed: the load of this head has acquired, and the same head, tag and all, is of the same push.
      if (head_.compare_exchange(head, pack(next, head + 1), order::relaxed)) return node;
      arch::pause();
      head = head_.load(order::acquire);  // [stack-handoff] acquire: as above
    }
  }

  // Everything at once, as a list through stack_link(), or null.
  Node* pop_all() {
    uint64_t head = head_.load(order::relaxed);  // relaxed: a guess
    // [stack-handoff] acquire: pairs with push.
    while (node_of(head) != nullptr && !head_.compare_exchange(head, pack(nullptr, head + 1), order::acquire)) {
    }
    return node_of(head);
  }

  // The node on top a moment ago, for statistics. Relaxed: all that they read of the node is atomic, and an estimate.
  Node* top() const { return node_of(head_.load(order::relaxed)); }

  // Whether it looked empty a moment ago.
  bool peek_empty() const { return node_of(head_.load(order::relaxed)) == nullptr; }  // relaxed: a hint

 private:
  static constexpr uint64_t kTagMask = (uint64_t{1} << kTagBits) - 1;

  static Node* node_of(uint64_t head) { return reinterpret_cast<Node*>((head >> kTagBits) << kAlignShift); }
  static uint64_t pack(Node* node, uint64_t tag) {
    return (reinterpret_cast<uint64_t>(node) >> kAlignShift << kTagBits) | (tag & kTagMask);
  }

  Atomic<uint64_t> head_{0};
};

}  // namespace folio
