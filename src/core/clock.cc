// Runs the ticks and keeps the bound on dirty memory, in the housekeeper or in the program's slow calls; and the
// housekeeper's main loop.
#include "core/clock.h"

#include <stdint.h>

#include "base/atomic.h"
#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_budget.h"
#include "cache/thread_caches.h"
#include "config/options.h"
#include "core/give_back.h"
#include "core/ladder.h"
#include "os/os.h"
#include "policy/retain.h"
#include "space/housekeeper.h"
#include "space/huge.h"
#include "space/large.h"
#include "store/collapse.h"
#include "sync/relaxed.h"

namespace folio {

constinit CollectRequest collect_request;

namespace {

constexpr size_t kExcessSlack = size_t{256} << 10;  // so that the bound is kept by few calls, not by one for each free
constexpr size_t kExcessMost = size_t{4} << 20;     // above it there are no second chances
constexpr int64_t kWorthAThread = int64_t{4} << 20;
constexpr uint64_t kSleepMostMs = 2000;
constexpr unsigned kPollsAPeriod = 4;    // the housekeeper's
constexpr unsigned kIdleTicks = 3;       // two ticks drain and purge all; then it sleeps until it is called
constexpr uint64_t kTrustedPolls = 4;    // the housekeeper counts as held up when it is late by so many polls
constexpr uint64_t kTrustedMs = 100;     // and so much more
constexpr uint64_t kLingerMs = 20;       // before it leaves: threads may come again
constexpr unsigned kPollsAfterRing = 4;  // the thread that rang has not ended yet
constexpr unsigned kLingersMost = 16;
constexpr uint64_t kAsleepAloneMs = 100;  // after the first thread has left: the process ends with the others
constexpr uint64_t kDoubtMs = 10000;      // for threads of which nobody knows whose they are
constexpr uint64_t kRetryMs = 10000;
constexpr unsigned kGoneChecks = 16;  // caches checked at each tick for threads that ended unnoticed

constinit Hint<uint64_t> next_tick{0}, no_thread_before{0};
constinit Hint<uint64_t> trusted_until{0};  // the housekeeper has polled by then, or it is held up
constinit ChunkRound tick_round;
constinit Hint<bool> bins_done{false};          // by this tick
constinit Hint<bool> worked{false};             // the program has made a slow call since the housekeeper's last tick
constinit Hint<int64_t> drained_at{INT64_MAX};  // what was live when drain_what_pins last drained since the last tick

// What was dirty and live at the last look at the bound, and how much either may change before a call of a large object
// looks again.
constinit Hint<int64_t> looked_dirty{0}, looked_live{0}, look_after{0};

uint64_t period_ms() {
  const auto half = static_cast<uint64_t>(options.decay) / 2;
  return half < 10 ? 10 : half;
}

// Also where it is further off than a period: `decay` was lowered.
bool is_due(uint64_t due, uint64_t now) { return due <= now || due - now > period_ms(); }
void age_beyond_bins() {
  large_age(process_fields);
  huge_age();
}

void age_everything() {
  age_bins(process_store);
  age_beyond_bins();
}

// What a tick does last. Returns whether it did anything.
bool end_tick(unsigned drained) {
  cpu_caches_spare(process_caches, ladder_is_tight());
  drained_at.set(INT64_MAX);
  drained += cpu_caches_trim(process_caches, false);
  // Without decay what was drained here goes at once, as the call that runs this tick has checked the bound already.
  if (options.decay == 0 && drained != 0) purge_everything(PurgeWhich::kNow, kUnlimited);
  thread_caches_find_gone(kGoneChecks);
  thread_budget_return_lost();
  forget_recent_live();
  look_after.set(0);
  return drained != 0;
}

// The housekeeper's. Returns whether it did anything.
bool tick() {
  const size_t purged = purge_everything(PurgeWhich::kAged, kUnlimited);
  const bool drained = end_tick(depot_trim(process_caches.depot, false));
  age_everything();
  bins_done.set(false);
  return purged != 0 || drained;
}

// A tick in the program's calls, as far as one call goes. False: the rest is due at once.
bool tick_in_steps() {
  size_t purged = 0;
  // Bins once in a tick: a step marks as aged what the next round is to purge.
  if (!bins_done.get()) {
    const PurgeStep step{PurgeWhich::kAged, kStepBytes, kWorthAlways, kStepChunks, false};
    const PurgeStepDone done = purge_bins_step(process_store, tick_round, step);
    if (!done.complete) return false;
    purged = done.purged;
    bins_done.set(true);
  }
  if (purged < kStepBytes) purged += purge_beyond_bins(PurgeWhich::kAged, kStepBytes - purged);
  if (purged >= kStepBytes) return false;
  const unsigned drained =
      options.decay == 0 ? depot_trim(process_caches.depot, false) : depot_age(process_caches.depot, kStepMagazines);
  if (options.decay != 0 && drained >= kStepMagazines) return false;
  end_tick(drained);
  age_beyond_bins();
  bins_done.set(false);
  return true;
}

void serve_request() {
  // Relaxed: numbers, written and read by system calls of another process.
  const uint32_t wanted = collect_request.wanted.load(order::relaxed);
  if (wanted == collect_request.done.load(order::relaxed)) return;  // relaxed: as above
  collect_everything("free");
  collect_request.done.store(wanted, order::relaxed);  // relaxed: as above
}

void serve_requests() {
  if (options.collect_from_outside == kCollectFromOutsideOn) {
    serve_request();
    ladder_serve_request();
  }
  ladder_poll();
}

// The housekeeper's: purges, down to the bound, pages that were dirty at the poll before and were not used since. (With
// the bound kept by the program's calls, Vyukov's chain took 6.8 s in place of 2.8.)
void poll() {
  serve_requests();
  const size_t excess = dirty_over_bound();
  if (excess == 0) return;
  purge_everything(PurgeWhich::kAged, excess);
  age_everything();
}

// The housekeeper keeps the time now: the program's calls leave it to do so, until it is long overdue for its next
// poll.
void keep_time_until(uint64_t next_poll_ms) {
  const uint64_t until = os::now_ms() + kTrustedPolls * next_poll_ms + kTrustedMs;
  trusted_until.set(until);
  set_timekeeper(true);
}

// Whether the housekeeper is wanted also where the program has one thread.
bool wanted_always() {
  return options.housekeeper == kHousekeeperOn ||
         (options.housekeeper == kHousekeeperAuto &&
          (options.collect_from_outside == kCollectFromOutsideOn || ladder_wants_housekeeper()));
}

// Whether the housekeeper is to leave: a program of one thread does without it, and main may have left by pthread_exit.
// Where the system does not say how many threads there are, the housekeeper must not keep the process from ending.
//
// Where main and all threads with a cache have ended, others may be the program's, which have allocated nothing yet, or
// the kernel's, or another copy of Folio, which waits for this one. So they get some time.
constinit uint64_t in_doubt_since = 0;  // 0: it is not; only the housekeeper touches this
bool nobody_left() {
  const unsigned threads = os::thread_total();
  if (thread_count() == 0 && os::first_thread_left()) {
    if (in_doubt_since == 0) in_doubt_since = os::now_ms();
    return threads <= 2 || os::now_ms() - in_doubt_since >= kDoubtMs;
  }
  in_doubt_since = 0;
  if (!wanted_always()) return threads <= 2;
  return threads == 0 ? thread_count() == 0 : threads <= 2 && os::first_thread_left();
}

constinit bool cannot_rest = false;  // the system refuses to let it sleep; only the housekeeper touches this

// Rests, and then checks which threads are left. False: the housekeeper is to leave.
bool rest(Rest kind, uint64_t ms, bool* called) {
  if (in_doubt_since != 0 && ms > kAsleepAloneMs) ms = kAsleepAloneMs;  // nobody rings as such a thread ends
  Woken woken = housekeeper_rest(kind, ms);
  *called = woken == Woken::kCalled;
  unsigned polls = woken == Woken::kRung ? kPollsAfterRing : 0;
  for (unsigned lingered = 0; lingered < kLingersMost; ++lingered, --polls) {  // bounded: threads may ring all the time
    cannot_rest = woken == Woken::kRefused;
    if (cannot_rest) return false;
    const bool alone = nobody_left();
    if (!alone && polls == 0) return true;
    woken = housekeeper_rest(Rest::kLinger, kLingerMs);
    if (alone && nobody_left()) return false;
    if (woken == Woken::kRung || polls == 0) polls = kPollsAfterRing;
  }
  return true;
}

// Ticks, with polls in between, as long as there is something to do. False: the housekeeper is to leave.
bool keep_time() {
  uint64_t due = os::now_ms() + period_ms();
  for (unsigned idle = 0; idle < kIdleTicks;) {
    const uint64_t part = period_ms() / kPollsAPeriod + 1, step = part < kSleepMostMs ? part : kSleepMostMs;
    keep_time_until(step);
    bool called;
    if (!rest(Rest::kBetweenPolls, step, &called)) return false;
    poll();
    const uint64_t now = os::now_ms();
    if (!is_due(due, now)) continue;
    due = now + period_ms();
    next_tick.set(due);
    const bool used = worked.swap(false);  // before the tick: what is freed beside it keeps the housekeeper awake
    const bool ticked = tick(), more = collapse_dense_clusters(process_store), busy = ticked || more || used;
    idle = busy ? 0 : idle + 1;
  }
  return true;
}

// Until it is called. False: the housekeeper is to leave.
bool sleep() {
  set_timekeeper(false);
  for (bool called = false; !called;) {
    const uint64_t most = os::first_thread_left() ? kAsleepAloneMs : kSleepMostMs;
    if (!rest(Rest::kUntilCalled, most, &called)) return false;
    if (worked.get()) break;  // left between the last tick and the sleep
    serve_requests();
  }
  return true;
}

// The program goes on as one that never had threads, and nobody keeps time: what its threads have left free goes now.
void hand_over() {
  set_timekeeper(false);
  empty_shared_caches();
  purge_everything(PurgeWhich::kAll, kUnlimited);
}

bool is_worth_a_thread() { return page_counts.resident.get() > kWorthAThread || wanted_always(); }

// Whether it goes on after all: threads may have started while it left, and found it still there. Not where the system
// refuses to let it sleep, or does not say how many threads there are.
bool comes_back() {
  if (cannot_rest || os::thread_total() == 0) {
    no_thread_before.set(os::now_ms() + kRetryMs);
    return false;
  }
  return !nobody_left() && housekeeper_enter();
}

void housekeeper_main(void*) {
  // No thread cache, whose end nobody would report: as this thread ends, the libc frees other threads' stacks.
  thread_state = {nullptr, Phase::kEnded};
  in_housekeeper = true;
  in_doubt_since = 0;  // that of the housekeeper before
  do {
    while ((!is_worth_a_thread() || keep_time()) && sleep()) {
    }
    hand_over();
  } while (!housekeeper_leave() || comes_back());
  if (os::first_thread_left()) os::leave_to_ordinary_thread();
}

// Wakes a housekeeper that sleeps while there is work for it: at most one system call for each of its sleeps.
void call_if_asleep() {
  if (!housekeeper_sleeps() || !is_worth_a_thread()) return;
  keep_time_until(0);
  housekeeper_call();
}

// In a heap that is freed in random order, the CPU caches hold up to 1 MiB of objects at last, each of which keeps its
// page. So they are drained, and keep little until the next tick, where three quarters of what was live, but for huge
// objects that still are, are gone and they may pin more than half of the rest; and again when half of that is gone.
// Returns whether any were drained. (A burst of 1 GiB left 8 % of itself, 2.3 % so; with caches of more than 1 MiB.)
bool drain_what_pins() {
  const int64_t live = live_resident();
  const auto huge = static_cast<int64_t>(huge_live_bytes());
  if (live > (recent_live() - huge) / 4 || live > drained_at.get() / 2) return false;
  if (static_cast<int64_t>(cpu_caches_pin(process_caches)) <= live / 2) return false;
  drained_at.set(live);
  cpu_caches_spare(process_caches, true);
  return cpu_caches_trim(process_caches, true, false) != 0;
}

// A bin found no chunk to inherit (store/retire.h), although half of `dirty_floor` is free: objects in caches may keep
// each of them. So what this thread and the CPU caches hold goes, and the next chunk that a bin wants is looked for
// again. (After 20 MiB of 832 bytes were freed in random order, 245 in caches lay in all 65 chunks.) In steps, one in
// each slow call, of whatever thread; of simultaneous ones one moves the place on, the others drain a little more. (In
// one call with CPU caches for 64 MiB it took 3 to 5 ms.)
constinit Hint<unsigned> unpin_next{0};  // the next step: from a list of a CPU cache on, then rounds of the depot
FOLIO_NOINLINE void unpin_chunks() {
  constexpr unsigned kRounds = 2;  // of the depot: what came last goes in the second
  unsigned at = unpin_next.get(), next = at, drained = 0;
  if (next == 0 && thread_state.cache != nullptr) thread_cache_drain(thread_state.cache, "free");
  if (next < kCpuListsEnd) next = cpu_caches_drain_step(process_caches, next, kStepMagazines, &drained);
  while (next >= kCpuListsEnd && next < kCpuListsEnd + kRounds && drained < kStepMagazines) {
    const unsigned most = kStepMagazines - drained, here = depot_age(process_caches.depot, most);
    if (here < most) ++next;
    drained += here;
  }
  const bool done = next == kCpuListsEnd + kRounds;
  // Not where others went on meanwhile: an end that comes after theirs would leave the next drain its rest only.
  if (!unpin_next.replace(at, done ? 0 : next) || !done) return;
  process_store.pinned.set(false);
  process_store.inherit_from.set(0);
}

void note_work() {
  if (!worked.get()) worked.set(true);
}

// In the program's calls. Pages that are dirty now go the next time, unless they are used until then; at once only
// where the excess is above kExcessMost. Rejected: always at once, by which a program with 64 buffers of up to 1 MiB
// touched new pages at every turn. Only some chunks are visited: if none of so many has a quarter of its pages to give,
// few have. (In 100 GiB, of which half was freed at random, each slow call visited 51,000 chunks.)
size_t purge_for_bound(size_t excess, size_t most_bytes, bool* in_vain) {
  const unsigned chunks = kStepChunks + static_cast<unsigned>(most_bytes >> kChunkShift);
  const PurgeStepDone done = purge_step({PurgeWhich::kAged, most_bytes, kWorthACall, chunks, true});
  *in_vain = !done.worthwhile;
  if (done.purged >= most_bytes) return done.purged;
  age_beyond_bins();
  if (excess <= kExcessMost) return done.purged;
  const size_t rest = most_bytes - done.purged;
  return done.purged + purge_step({PurgeWhich::kNow, rest, kWorthACall, chunks, true}).purged;
}

bool look_is_due() {
  const int64_t dirty = page_counts.dirty.get() - looked_dirty.get(), live = live_resident() - looked_live.get();
  const int64_t after = look_after.get();
  return dirty >= after || dirty <= -after || live >= after || live <= -after;
}

// In a call by which large or huge objects grew by `taken` bytes.
FOLIO_NOINLINE void keep_bound(size_t taken) {
  note_work();
  call_if_asleep();
  size_t excess = dirty_excess();
  const bool within = excess < kExcessSlack;
  constexpr int64_t kLookAfter = int64_t{2} << 20;
  look_after.set(!within ? 0 : excess == 0 ? kLookAfter : static_cast<int64_t>(kExcessSlack));
  looked_dirty.set(page_counts.dirty.get());
  looked_live.set(live_resident());
  if (excess == 0 || (within && options.decay != 0)) return;
  if (drain_what_pins()) excess = dirty_excess();
  // In steps that grow with the excess: 126 frees of scattered objects, one slow call, can free as many pages.
  size_t step = excess / 4 < kStepBytes ? kStepBytes : excess / 4 < kStepBytesMost ? excess / 4 : kStepBytesMost;
  // What a call takes must not come on top of what has to go for it.
  if (step < taken) step = taken;
  const size_t most = excess + kExcessSlack < step ? excess + kExcessSlack : step;
  bool in_vain = true;
  // Without decay all of it goes by the call that frees, page by page.
  const size_t purged =
      options.decay == 0 ? purge_everything(PurgeWhich::kNow, excess) : purge_for_bound(excess, most, &in_vain);
  if (purged != 0) note_purged_to_bound(purged);
  note_pass(purged == 0 && in_vain);
}

FOLIO_NOINLINE void poll_time() {
  note_work();
  uint64_t due = next_tick.get();  // before the clock, else it may look further off than a period
  const uint64_t now = os::now_ms();
  if (timekeeper_runs()) {
    if (now < trusted_until.get()) return;
    // It is held up, or this is a process that was copied without it: the calls take over until it comes.
    set_timekeeper(false);
  }
  note_live();  // while nothing is free keep_bound does not look: 10 MiB, built and freed in turns, lost 0.7 in each
  call_if_asleep();
  if (!is_due(due, now) || timekeeper_runs()) return;
  // Whoever moves the time forward runs the tick.
  if (!next_tick.replace(due, now + period_ms()) || due == 0) return;
  if (!tick_in_steps()) next_tick.set(now);  // the rest is due at once
}

// Whether the slow call of this number reads the clock, which costs as much as the rest of it. Two of sixteen do,
// consecutive ones: so mallocs do too where mallocs and frees take turns.
bool polls_time(uint32_t calls) { return calls % 16 < 2; }

}  // namespace

void clock_after_slow_call() {
  if (process_store.pinned.get()) unpin_chunks();
  if (dirty_over_floor()) keep_bound(0);
  ladder_after_call();
  const ThreadCache* cache = thread_state.cache;
  if (cache != nullptr && !polls_time(cache->activity.get())) return;
  poll_time();
}

void clock_after_large_call(size_t taken) {
  if (taken != 0) note_live();
  if (dirty_over_floor()) keep_bound(taken);
  ladder_after_call();
  poll_time();
}

// Looks at the bound where what is dirty or live has changed by 2 MiB since the last look, if all was within it then;
// each time where frees shall purge at once. (Each call: a tenth of the instructions. Not by a thread's calls: 100 that
// freed one object each were 250 MiB over the bound. Not by what is dirty alone: what a heap of 100 MiB had left stayed
// beside the next one. Not by growth alone: after a trim 350 MiB were free in place of 90.)
void clock_after_large_bytes(size_t taken) {
  if (taken != 0) note_live();
  if (dirty_over_floor() && (options.decay == 0 || look_is_due())) keep_bound(taken);
  ladder_after_call();
  poll_time();
}

// A call that frees so much also purges as much: the bound on dirty memory must not depend on later calls. The blocks
// that have waited longest go first, as a program that works in turns wants the last freed one next. (Where live huge
// objects did not count for the bound, ten of 20 MB, replaced by turns, took 3.1 ms a turn in place of 0.12.)
void clock_after_huge_free(size_t freed) {
  note_live_until_now(freed);
  if (const size_t excess = dirty_excess()) {
    const size_t aged = huge_purge(false, excess);
    note_huge_purged_to_bound(aged + (aged < excess ? huge_purge(true, excess - aged) : 0));
  }
  clock_after_large_call(0);
}

// Makes little memory dirty, so only calls that read the clock check the bound. (In each: a tenth of the time of 300
// objects of up to 200 KB, replaced at random.)
void clock_after_light_call() {
  // Makes a cache where the thread has none: else a thread of large objects alone would read the clock in each call.
  ThreadCache* const cache = thread_cache();
  if (cache != nullptr) {
    const uint32_t calls = cache->activity.get() + 1;
    cache->activity.set(calls);
    if (!polls_time(calls)) return;
  }
  clock_after_slow_call();
}

bool clock_start_housekeeper() {
  if (options.housekeeper == kHousekeeperOff) return false;
  const uint64_t now = os::now_ms();
  if (now < no_thread_before.get()) return false;
  if (!housekeeper_enter()) return true;
  if (os::start_thread(housekeeper_main, nullptr)) return true;
  no_thread_before.set(now + kRetryMs);
  housekeeper_forget();
  return false;
}

void clock_start_housekeeper_if_on() {
  if (wanted_always()) clock_start_housekeeper();
}

void clock_after_fork(bool alone) {
  if (!alone && housekeeper_is_own()) return;  // a thread that a handler of the program's has started has started it
  set_timekeeper(false);
  housekeeper_forget();
}

}  // namespace folio
