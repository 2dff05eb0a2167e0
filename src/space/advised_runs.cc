// Extends, replaces and withdraws runs; each withdrawal is one system call.
#include "space/advised_runs.h"

#include "config/size_classes.h"
#include "os/os.h"

namespace folio {

namespace {

struct Run {
  uint64_t first, count;
  static Run of(uint64_t word) { return {word >> 32, word & UINT32_MAX}; }
  uint64_t word() const { return first << 32 | count; }
  bool holds(uint64_t cluster) const { return cluster - first < count; }
  bool is_beside(uint64_t cluster) const { return count != 0 && (cluster == first + count || cluster + 1 == first); }
  Run with(uint64_t cluster) const { return {cluster < first ? cluster : first, count + 1}; }
  void withdraw() const {
    if (count != 0) os::refuse_huge_pages(reinterpret_cast<char*>(first << kClusterShift), count << kClusterShift);
  }
};

uint64_t number_of(const char* cluster) { return reinterpret_cast<uintptr_t>(cluster) >> kClusterShift; }

}  // namespace

constinit Hint<unsigned> runs_begun{0};

void AdvisedRuns::add(char* cluster, bool is_new) {
  const uint64_t number = number_of(cluster);
  for (Atomic<uint64_t>& word : run) {
    uint64_t now = word.load(order::relaxed);  // relaxed: numbers only, a hint
    do {
      if (Run::of(now).holds(number)) return;
      // Relaxed: as above. unseen: a store could bring a withdrawn run back, of which a cluster has been unmapped
      // since: the next withdrawal would reach what the program has mapped there
    } while (Run::of(now).is_beside(number) &&
             !word.compare_exchange(now, Run::of(now).with(number).word(), order::relaxed));
    if (Run::of(now).is_beside(number)) return;
  }
  if (is_new) runs_begun.set(runs_begun.get() + 1);
  const unsigned place = next.get();
  next.set((place + 1) % kMost);
  Run::of(run[place].exchange(Run{number, 1}.word(), order::relaxed)).withdraw();  // relaxed: as above
}

void AdvisedRuns::withdraw(char* cluster) {
  for (Atomic<uint64_t>& word : run) {
    uint64_t now = word.load(order::relaxed);  // relaxed: numbers only, a hint
    while (Run::of(now).holds(number_of(cluster))) {
      // Relaxed: as above. unseen: a store could lose a cluster that was added just now, which then stays advised
      if (word.compare_exchange(now, 0, order::relaxed)) return Run::of(now).withdraw();
    }
  }
  os::refuse_huge_pages(cluster, kClusterBytes);
}

}  // namespace folio
