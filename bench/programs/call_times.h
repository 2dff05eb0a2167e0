// Times of single calls, with those apart during which the kernel took the CPU away.
//
// A thread that is preempted inside malloc shows a time slice, not the allocator. So after a long call the thread asks
// how often it was preempted; the longest call that is not near a preemption is reported beside the longest of all.

#pragma once

#include <sys/resource.h>

#include "bench.h"
#include "histogram.h"

namespace bench {

// Of the calling thread: whether it was preempted since it last looked.
class Disturbance {
 public:
  // Now and then, so that a preemption between calls is not held against the next long one.
  void poll(uint64_t iteration) {
    if (iteration % kPollEvery == 0) switches_ = involuntary_switches();
  }

  bool since_last_poll() {
    const uint64_t before = switches_;
    switches_ = involuntary_switches();
    return switches_ != before;
  }

 private:
  static constexpr uint64_t kPollEvery = 256;

  static uint64_t involuntary_switches() {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return static_cast<uint64_t>(usage.ru_nivcsw);
  }

  uint64_t switches_ = involuntary_switches();
};

// Zero bytes are valid: no calls.
class CallTimes {
 public:
  // `preempted`: a part of the time is known to be. Returns whether the time counts as near a preemption.
  bool record(uint64_t ns, Disturbance *disturbance, bool preempted = false) {
    all_.record(ns);
    if (ns > kOutlierNs && disturbance->since_last_poll()) preempted = true;
    if (!preempted && ns > max_undisturbed_) max_undisturbed_ = ns;
    return preempted;
  }

  void add(const CallTimes &other) {
    all_.add(other.all_);
    if (other.max_undisturbed_ > max_undisturbed_) max_undisturbed_ = other.max_undisturbed_;
  }

  uint64_t count() const { return all_.count(); }
  double mean() const { return all_.mean(); }
  uint64_t max() const { return all_.max(); }
  uint64_t max_undisturbed() const { return max_undisturbed_; }

  void report(Json *json, const char *call) const {
    const auto field = [&](const char *what, uint64_t value) {
      char name[64];
      snprintf(name, sizeof(name), "%s_%s_ns", call, what);
      json->count(name, value);
    };
    field("p50", all_.percentile(0.5));
    field("p90", all_.percentile(0.9));
    field("p99", all_.percentile(0.99));
    field("p99_9", all_.percentile(0.999));
    field("p99_99", all_.percentile(0.9999));
    field("p99_999", all_.percentile(0.99999));
    field("max", all_.max());
    field("max_undisturbed", max_undisturbed_);
  }

 private:
  static constexpr uint64_t kOutlierNs = 20000;

  Histogram all_;
  uint64_t max_undisturbed_ = 0;
};

}  // namespace bench
