#include "core/clock.h"

#include <stdint.h>

#include "base/atomic.h"
#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_caches.h"
#include "config/options.h"
#include "folio/purge.h"
#include "os/os.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/pages.h"

namespace folio {

constinit CollectRequest collect_request;

namespace {

constexpr size_t kUnlimited = ~size_t{0};
constexpr size_t kExcessSlack = size_t{256} << 10;  // so that the bound is kept by few calls, not by one for each free
constexpr size_t kExcessMost = size_t{4} << 20;     // above it there are no second chances
constexpr size_t kWorthALook = size_t{16} << 20;    // of live huge objects
constexpr int64_t kWorthAThread = int64_t{4} << 20;
constexpr uint64_t kSleepMostMs = 2000;
constexpr unsigned kLooksAPeriod = 4;  // the housekeeper's
constexpr uint64_t kRetryMs = 10000;
constexpr uint64_t kAskAgainMs = 200;
constexpr unsigned kGoneLooks = 16;  // for threads that are gone without a word, at each tick

constinit Atomic<uint64_t> next_tick{0};
enum : uint32_t { kNoThread = 0, kThread = 1 };
constinit Atomic<uint32_t> housekeeper{kNoThread};
constinit Atomic<uint64_t> no_thread_before{0};
constinit Atomic<uint64_t> next_look{0};
constinit Atomic<int64_t> drained_at{INT64_MAX};  // what was live when drain_what_pins last did so, since the last tick

uint64_t period_ms() {
  const auto half = static_cast<uint64_t>(options.decay) / 2;
  return half < 10 ? 10 : half;
}

size_t purge_everything(PurgeWhich which, size_t most_bytes) {
  const uint64_t refusals = purge_refusals();
  size_t purged = purge_bins(which, most_bytes);
  if (purged < most_bytes) purged += large_purge(which == PurgeWhich::kAll, most_bytes - purged);
  if (purged < most_bytes) purged += huge_purge(which == PurgeWhich::kAll, most_bytes - purged);
  note_pass(purged == 0 && purge_refusals() != refusals);
  return purged;
}

void age_everything() {
  age_bins();
  large_age();
}

// Returns whether it did anything. `most_bytes` bounds the time that it takes.
bool tick(size_t most_bytes) {
  const size_t purged = purge_everything(PurgeWhich::kAged, most_bytes);
  if (purged >= most_bytes) {
    next_tick.store(os::now_ms(), order::relaxed);  // relaxed: a time; the rest of this tick is due at once
    return true;
  }
  cpu_caches_spare(false);
  drained_at.store(INT64_MAX, order::relaxed);  // relaxed: an estimate
  const unsigned drained = cpu_caches_trim(false) + depot_trim(false);
  thread_caches_find_gone(kGoneLooks);
  age_everything();
  forget_recent_live();
  return purged != 0 || drained != 0;
}

void serve_request() {
  // Relaxed: numbers, written and read by system calls of another process.
  const uint32_t wanted = collect_request.wanted.load(order::relaxed);
  if (wanted == collect_request.done.load(order::relaxed)) return;  // relaxed: as above
  clock_collect("free");
  collect_request.done.store(wanted, order::relaxed);  // relaxed: as above
}

// The bound on dirty memory follows what is live. Of huge objects only the kernel knows what is resident, so it is
// asked, now and then: what it counts beyond the objects of the bins and what is free is theirs, or the program's own.
// Returns whether it was.
bool learn_live_huge() {
  constexpr uint64_t kEveryMs = 100;
  const size_t live = huge_live_bytes();
  if (live < kWorthALook) return false;
  const uint64_t now = os::now_ms();
  uint64_t due = next_look.load(order::relaxed);  // relaxed: a time
  // relaxed: whoever moves the time forward asks
  if (now < due || !next_look.compare_exchange(due, now + kEveryMs, order::relaxed)) return false;
  const size_t process = os::resident_bytes();
  const auto known = static_cast<size_t>(page_counts.resident.load(order::relaxed));  // relaxed: an estimate
  const size_t rest = process > known ? process - known : 0;
  set_live_huge(rest < live ? rest : live);
  return true;
}

size_t learn_excess() {
  const size_t excess = dirty_over_bound();
  return excess != 0 && learn_live_huge() ? dirty_over_bound() : excess;
}

// A look of the housekeeper: while more is dirty than the bound allows, what was not used since the look before goes,
// as far as it is too much. With the bound kept by the program's calls, Vyukov's chain took 6.8 s in place of 2.8.
void look() {
  if (options.collect_from_outside == kCollectFromOutsideOn) serve_request();
  const size_t excess = learn_excess();
  if (excess == 0) return;
  purge_everything(PurgeWhich::kAged, excess);
  age_everything();
}

// The housekeeper's sleep, with looks in between while there is something to do.
void rest(uint64_t ms) {
  const uint64_t part = ms > period_ms() ? ms : ms / kLooksAPeriod + 1;
  const uint64_t most = part < kSleepMostMs ? part : kSleepMostMs;
  while (ms != 0) {
    const uint64_t step = ms < most ? ms : most;
    os::sleep_ms(step);
    look();
    ms -= step;
  }
}

void housekeeper_main(void*) {
  uint64_t sleep = period_ms();
  set_timekeeper(true);
  // When the last of the program's threads is gone (main may have left by pthread_exit), so is this one.
  while (thread_count() != 0 || options.housekeeper == kHousekeeperOn) {
    rest(sleep);
    next_tick.store(os::now_ms() + period_ms(), order::relaxed);                       // relaxed: a time
    const bool busy = tick(kUnlimited) || page_counts.dirty.load(order::relaxed) > 0;  // relaxed: an estimate
    sleep = busy ? period_ms() : sleep * 2 < kSleepMostMs ? sleep * 2 : kSleepMostMs;
  }
  set_timekeeper(false);
  housekeeper.store(kNoThread, order::release);  // [housekeeper] release: pairs with start_housekeeper
}

// Threads that have never allocated count too: a server's may be of that kind, and it then lies idle with all it freed.
bool has_threads() { return thread_count() > 1 || (thread_count() == 1 && os::thread_total() > 1); }

void start_housekeeper(uint64_t now) {
  const bool always = options.housekeeper == kHousekeeperOn || (options.housekeeper == kHousekeeperAuto &&
                                                                options.collect_from_outside == kCollectFromOutsideOn);
  const int64_t resident = page_counts.resident.load(order::relaxed);  // relaxed: an estimate
  const bool possible = always || (options.housekeeper == kHousekeeperAuto && resident > kWorthAThread);
  uint32_t none = kNoThread;
  if (!possible || housekeeper.load(order::relaxed) != kNoThread) return;  // relaxed: a look first
  if (now < no_thread_before.load(order::relaxed)) return;                 // relaxed: a time
  if (!always && !has_threads()) {
    no_thread_before.store(now + kAskAgainMs, order::relaxed);  // relaxed: a time
    return;
  }
  // [housekeeper] acquire: the thread before this one has left; pairs with housekeeper_main.
  if (!housekeeper.compare_exchange(none, kThread, order::acquire)) return;
  if (os::start_thread(housekeeper_main, nullptr)) return;
  no_thread_before.store(now + kRetryMs, order::relaxed);  // relaxed: a time
  housekeeper.store(kNoThread, order::relaxed);            // relaxed: there was none
}

// Of a heap that is freed in random order what is left at last is what the CPU caches hold: 1 MiB of objects, each of
// which keeps its folio's pages (a burst of 1 GiB left 8 % of it, 2.3 so). Where most of what was live is gone, and
// they may hold more than half of what is left, they are drained, and keep little until the next tick; then again when
// half of that is gone. Returns whether they were.
bool drain_what_pins() {
  const int64_t live = live_resident();
  // Relaxed: estimates.
  if (live > recent_live() / 4 || live > drained_at.load(order::relaxed) / 2) return false;
  if (static_cast<int64_t>(cpu_caches_pin()) <= live / 2) return false;
  drained_at.store(live, order::relaxed);  // relaxed: as above
  cpu_caches_spare(true);
  return cpu_caches_trim(true, false) != 0;
}

FOLIO_NOINLINE void keep_bound() {
  size_t excess = dirty_excess() == 0 ? 0 : learn_excess();
  if (excess == 0 || (excess < kExcessSlack && options.decay != 0)) return;
  if (drain_what_pins()) excess = learn_excess();
  // In steps, larger the further it has got: 62 frees of scattered objects can empty as many folios.
  const size_t step = excess / 4 < kStepBytes ? kStepBytes : excess / 4 < kStepBytesMost ? excess / 4 : kStepBytesMost;
  const size_t wanted = excess + kExcessSlack < step ? excess + kExcessSlack : step;
  const size_t most = options.decay == 0 ? excess : wanted;  // without decay, all of it by the call that frees
  const size_t aged = purge_everything(PurgeWhich::kAged, most);
  if (aged != 0) note_purged_to_bound();
  if (aged >= most) return;
  // A second chance: what is dirty now goes next time, unless it is used until then. Rejected: to purge anything at
  // once, by which a program with 64 buffers of up to 1 MiB touched new pages at every turn.
  age_everything();
  if (excess > kExcessMost || options.decay == 0) {
    if (purge_everything(PurgeWhich::kAll, most - aged) != 0) note_purged_to_bound();
  }
}

}  // namespace

namespace {

FOLIO_NOINLINE void look_at_time(SlowCall call) {
  const uint64_t now = os::now_ms();
  uint64_t due = next_tick.load(order::relaxed);  // relaxed: a time
  if (call == SlowCall::kMalloc) start_housekeeper(now);
  if (now < due) return;
  const bool has_thread = housekeeper.load(order::relaxed) == kThread;  // relaxed: a hint
  if (has_thread && now < due + 2 * kSleepMostMs) return;
  // Relaxed: whoever moves the time forward runs the tick.
  if (!next_tick.compare_exchange(due, now + period_ms(), order::relaxed) || due == 0) return;
  tick(kStepBytes);
}

}  // namespace

void clock_after_slow_call(SlowCall call) {
  if (dirty_over_floor()) keep_bound();
  // Reading a clock costs as much as the rest of a slow call: two neighbours of sixteen do, so that one is a malloc
  // also where mallocs and frees take turns.
  const ThreadCache* cache = thread_state.cache;
  if (cache != nullptr && cache->activity.load(order::relaxed) % 16 >= 2) return;  // relaxed: the thread's own
  look_at_time(call);
}

void clock_after_large_call(SlowCall call) {
  if (dirty_over_floor()) keep_bound();
  look_at_time(call);
}

void clock_after_cached_large_call(SlowCall call) {
  if (ThreadCache* cache = thread_state.cache) {
    cache->activity.store(cache->activity.load(order::relaxed) + 1, order::relaxed);  // relaxed: the thread's own
  }
  clock_after_slow_call(call);
}

size_t clock_collect(const char* function) {
  const uint64_t before = page_counts.purged.load(order::relaxed);  // relaxed: a statistic
  if (ThreadCache* cache = thread_cache()) thread_cache_drain(cache, function);
  cpu_caches_trim(true);
  depot_trim(true);
  retry_refused();
  purge_everything(PurgeWhich::kAll, kUnlimited);
  huge_unmap_free();
  return page_counts.purged.load(order::relaxed) - before;  // relaxed: a statistic
}

void clock_after_fork() {
  set_timekeeper(false);
  housekeeper.store(kNoThread, order::relaxed);  // relaxed: the child has one thread
}

}  // namespace folio
