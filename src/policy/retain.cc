// Computes the bound on dirty memory from what is live, what was live lately, and what large objects may want again.
#include "policy/retain.h"

#include "base/bits.h"
#include "sync/relaxed.h"

namespace folio {

namespace {

constinit Hint<bool> timekeeper{false};
constinit Hint<int64_t> most_live{0};      // since the last tick
constinit Hint<int64_t> most_resident{0};  // the same without huge objects
constinit Hint<int64_t> purged{0};         // for the bound, since the last tick, and not live again yet
constinit Hint<int64_t> purged_to{0};      // what was live after it, and then what came back of it
constinit Hint<int64_t> regrown{0};        // what came back; half of it at each tick
// The same of huge objects: not by what is live, as their pages may be untouched, but by blocks that are filled again.
constinit Hint<int64_t> huge_purged{0}, huge_regrown{0};
constinit Hint<uint64_t> huge_refilled{0};  // as last seen

constinit Counter<unsigned> passes_in_vain{0};  // in a row, since the last tick
constexpr unsigned kInVainMost = 2;
constexpr int64_t kWaitLeast = int64_t{1} << 20, kWaitMost = int64_t{4} << 20;
constinit Hint<int64_t> wait_until{0};  // after kInVainMost such passes: what must be dirty before the next one

int64_t live_huge() { return static_cast<int64_t>(page_counts.huge_live.get()); }
int64_t live_now() { return live_resident() + live_huge(); }

// Raises `most` to `live`, and returns what it is then.
int64_t raise(Hint<int64_t>& most, int64_t live) {
  const int64_t before = most.get();
  if (live <= before) return before;
  most.set(live);
  return live;
}

// Takes what is live without huge objects, as the next ones.
void note_regrown(int64_t live) {
  const int64_t came_back = least_of(live - purged_to.get(), purged.get());
  if (came_back <= 0) return;
  regrown.set(least_of(regrown.get() + came_back, kAgainMost));
  purged.set(purged.get() - came_back);
  purged_to.set(live);
}

void note_huge_regrown() {
  const uint64_t now = page_counts.huge_refilled.get();
  const auto refilled = static_cast<int64_t>(now - huge_refilled.get());
  if (refilled <= 0) return;  // negative: another thread has seen more
  huge_refilled.set(now);
  const int64_t came_back = least_of(refilled, huge_purged.get());
  huge_regrown.set(least_of(huge_regrown.get() + came_back, kAgainMost));
  huge_purged.set(huge_purged.get() - came_back);
}

}  // namespace

void set_timekeeper(bool runs) { timekeeper.set(runs); }
bool timekeeper_runs() { return timekeeper.get(); }

int64_t note_live() {
  const int64_t live = live_now();
  raise(most_live, live);
  raise(most_resident, live_resident());
  return live;
}

// No more than can be tolerated for it: a sparse object has touched little of its bytes.
void note_live_until_now(size_t bytes) {
  raise(most_live, live_now() + least_of(static_cast<int64_t>(bytes), kTolerated));
}

int64_t live_resident() { return page_counts.resident.get() - page_counts.dirty.get(); }

int64_t recent_live() { return most_live.get(); }

void forget_recent_live() {
  most_live.set(live_now());
  most_resident.set(live_resident());
  regrown.set(regrown.get() / 2);
  huge_regrown.set(huge_regrown.get() / 2);
  purged.set(0);
  huge_purged.set(0);
  passes_in_vain.set(0);
  wait_until.set(0);
}

void note_purged_to_bound(size_t bytes) {
  const int64_t live = live_resident();
  note_regrown(live);
  purged.set(purged.get() + static_cast<int64_t>(bytes));
  purged_to.set(live);
}

void note_huge_purged_to_bound(size_t bytes) { huge_purged.set(huge_purged.get() + static_cast<int64_t>(bytes)); }

size_t dirty_excess() { return options.decay != 0 && timekeeper_runs() ? 0 : dirty_over_bound(); }

size_t dirty_over_bound() {
  const int64_t dirty = page_counts.dirty.get();
  const int64_t least = options.dirty_floor << 20, floor = least + least_of(regrown.get() / 4, least);
  if (dirty < wait_until.get()) return 0;
  if (options.decay == 0) return dirty > 0 ? static_cast<size_t>(dirty) : 0;
  if (dirty <= floor) return 0;
  const int64_t live = note_live();
  const int64_t recent = most_live.get();
  const int64_t huge = live_huge(), resident = live - huge;
  note_regrown(resident);
  note_huge_regrown();
  const int64_t proven = least_of(kAgainFirst + regrown.get(), kAgainMost);
  const int64_t lately = least_of(recent - live, most_resident.get() - resident);
  const int64_t again = timekeeper_runs() ? 0 : least_of(lately, proven);
  const int64_t in_vain = timekeeper_runs() ? 0 : most_of(least_of(huge_regrown.get(), recent - 2 * live), 0);
  const int64_t most_back = least_of(kTolerated + in_vain, kAgainMost);
  const int64_t back = least_of(least_of(recent, recent + recent / 4 - live), most_back);  // may come back
  const int64_t some = most_of(back, least_of(2 * live, kTolerated));
  const int64_t share = most_of(some, least_of(some + least_of(huge / 4, 4 * kTolerated), recent - live));
  const int64_t large = most_of(least_of(page_counts.dirty_large.get(), share), 0);
  // What grows of the floor does not come on top of large objects.
  const int64_t bound = most_of(large + most_of(least, resident / 4), floor + again);
  const int64_t excess = dirty - bound;
  return excess > 0 ? static_cast<size_t>(excess) : 0;
}

void note_pass(bool in_vain) {
  const unsigned passes = in_vain ? passes_in_vain.get() + 1 : 0;
  passes_in_vain.set(passes);
  // There is something to purge again. (With a wait that went on, a quarter of a burst freed in random order stayed.)
  if (!in_vain) wait_until.set(0);
  if (passes < kInVainMost) return;
  const int64_t dirty = page_counts.dirty.get();
  // At most kWaitMost, which takes about as long to free as a pass over a few chunks takes. In a heap that is freed in
  // random order no chunk has a quarter of its pages to give at first, and soon all have: without kWaitMost 100 MiB of
  // 256 stayed, in place of 75.
  wait_until.set(dirty + most_of(kWaitLeast, least_of(dirty / 8, kWaitMost)));
}

}  // namespace folio
