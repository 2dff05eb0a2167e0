#include "base/atomic.h"

Atomic<int> word;

void good() {
  word.store(1, order::release);  // [both-ends] release: publishes; pairs with good
  // [both-ends] acquire: pairs with the store above.
  word.load(order::acquire);
  word.load(order::relaxed);  // relaxed: a guess
}

void untagged() {
  word.load(order::acquire);
}

void other_word() {
  word.store(1, order::seq_cst);  // [both-ends] release: pairs with good
}

void too_far_away() {
  // [both-ends] acquire: pairs with no_such_function.
  int a = 1;
  int b = 2;
  int c = a + b;
  word.load(order::acquire);
}

void edges() {
  word.store(1, order::release);  // [one-end] release: pairs with nothing
  word.store(1, order::release);  // [no-reader] release: pairs with the next
  word.store(2, order::release);  // [no-reader] release: pairs with the last
  word.load(order::acquire);      // [no-writer] acquire: pairs with the next
  word.load(order::acquire);      // [no-writer] acquire: pairs with the last

}

void silent() {
  word.load(order::relaxed);
  __atomic_load_n(&raw, __ATOMIC_RELAXED);
}

const char* literal() { return "order::relaxed"; }
