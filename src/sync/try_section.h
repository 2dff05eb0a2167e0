// TrySection: a critical section that is tried and never waited for. The CPU caches are its only user.
//
// Where the processor has transactions (RTM) the body runs as one: it subscribes to the flag first (early subscription:
// late subscription is unsafe in general, and was worth half a percent to SuperMalloc [§8]), so it aborts if a
// thread without transactions is inside. A few retries, then the flag, as without RTM: one exchange; busy means false,
// and the caller goes elsewhere.
//
// The body must touch only memory of the process: no system call, no other section. It runs at most once with effect.
//
// Rejected, as no gain in time exceeded the noise (2 to 64 threads, without transactions; docs/decisions.md):
//   - to copy objects between magazines outside of the section, which takes two sections in place of one;
//   - to prefetch the lines of the body before it;
//   - the count of busy tries on a line of its own;
//   - eight pauses before a busy section is given up: with 32 threads 10 % of the tries find it busy in place of 39.
//
// A thread that stops inside holds the flag for ever: others find it busy for ever, and do without this cache.
#pragma once

#include "arch/arch.h"
#include "base/atomic.h"

namespace folio {

// Hardware is the processor's Transaction, or a scripted one in tests.
template <class Hardware>
class BasicTrySection {
 public:
  static constexpr unsigned kAttempts = 3;

  // Runs the body unless the section is busy. True if it ran.
  template <class Body>
  FOLIO_INLINE bool run(bool use_transactions, Body&& body) {
    if (use_transactions && run_as_transaction(body)) return true;
    // [section] acquire: sees what the last body wrote; pairs with the store below.
    // relaxed: a glance first
    if (held_.load(order::relaxed) != 0 || held_.exchange(1, order::acquire) != 0) return false;
    body();
    held_.store(0, order::release);  // [section] release: pairs with the exchange above
    return true;
  }

  bool held() const { return held_.load(order::relaxed) != 0; }  // relaxed: for a process with one thread
  // In the child of a fork, where whoever was inside is gone.
  void forget_holder() { held_.store(0, order::relaxed); }  // relaxed: the child has one thread

 private:
  template <class Body>
  FOLIO_NOINLINE bool run_as_transaction(Body& body) {
    for (unsigned attempt = 0; attempt < kAttempts; ++attempt) {
      const unsigned status = Hardware::begin();
      if (status == Hardware::kStarted) {
        if (held_.load(order::relaxed) != 0) Hardware::abort();  // relaxed: the transaction orders it
        body();
        Hardware::commit();
        return true;
      }
      if ((status & Hardware::kMayRetry) == 0) return false;
      arch::pause();
    }
    return false;
  }

  Atomic<uint32_t> held_{0};
};

using TrySection = BasicTrySection<arch::Transaction>;

}  // namespace folio
