// Sets how much each bin of a thread may hold: capacities that double, within the thread's budget and its claims on
// the pool.
#include "cache/thread_budget.h"

#include "base/bits.h"
#include "config/options.h"
#include "policy/limit.h"
#include "space/pages.h"
#include "store/watch.h"
#include "sync/relaxed.h"

namespace folio {

namespace {

alignas(64) constinit Counter<int64_t> pool_claimed{0};
constinit Counter<int64_t> large_claimed{0};
constinit Counter<int64_t> lost_claims{0};  // part of pool_claimed: of threads that ended unnoticed

constexpr int64_t kClaimBytes = int64_t{64} << 10;

int64_t charge(BinId bin, unsigned capacity) { return int64_t{info_of(bin).size} * capacity; }

// What all threads may claim together: option * max(1, floor(resident bytes / 128 MiB)). (With 8 MiB whatever the size
// of the process, 16 threads of 30 MiB each took 1.6 times as long, 64 threads 2.5 times, in no less memory.)
int64_t pool_bytes() {
  constexpr unsigned kPoolPerShift = 27;
  const int64_t shares = page_counts.resident.get() >> kPoolPerShift;
  return (options.thread_cache_pool << 20) * (shares > 1 ? shares : 1);
}

// Claims kClaimBytes more, if all claims together are `most` at most then.
bool claim_of(Counter<int64_t>& claims, int64_t most) {
  // A look first: if all is used up, threads would else write this line at each slow call.
  if (claims.get() + kClaimBytes > most) return false;
  if (claims.add(kClaimBytes) + kClaimBytes <= most) return true;
  claims.sub(kClaimBytes);
  return false;
}

bool claim(ThreadBudget& b, int64_t bytes) {
  while (b.left < bytes) {
    if (!claim_of(pool_claimed, pool_bytes())) return false;
    b.claimed += kClaimBytes;
    b.left += kClaimBytes;
  }
  b.left -= bytes;
  return true;
}

// A bin of larger objects gets a magazine after a few slow calls between two sweeps: a budget is worth more in a few
// bins with room than in many with one object each. While the bin is watched, frees bypass the caches, so a magazine
// would make the program touch as many fresh objects as it holds: 0.8 MB more for Python's start.
// Rejected:
//   - room for one or two objects at the first call, and none in the caches beyond the budget: Vyukov's chain took 1.25
//     and 1.37 of the processor time;
//   - one object outside of the budget: threads that use all sizes up to 32 KB keep 148 KiB each in place of 40.
constexpr unsigned kCallsToFirst = 4;
constexpr unsigned kCallsToFirstWatched = 64;
constexpr unsigned kLargerFirst = 4;

unsigned next_capacity(BinId bin, const BinCache& cached, unsigned most) {
  const BinInfo& info = info_of(bin);
  unsigned next;
  if (cached.capacity != 0) {
    next = 2u * cached.capacity;
  } else if (info.size <= kSmallFirst) {
    const unsigned fit = 1024 / info.size;
    next = fit > 8 ? 8 : fit;
  } else {
    next = cached.calls < (watch_wanted(process_store, bin) ? kCallsToFirstWatched : kCallsToFirst) ? 0 : kLargerFirst;
  }
  return next + next / 2 > most ? most : next;
}

}  // namespace

void thread_budget_begin(ThreadBudget& b) {
  b.left = options.thread_cache << 10;
  b.used_up = false;
}

void thread_budget_grow(ThreadBudget& b, BinId bin, bool over) {
  BinCache& cached = b.bins[index(bin)];
  if (cached.calls < 255) ++cached.calls;
  const unsigned of_bin = info_of(bin).magazine_most;
  if (b.used_up || cached.capacity >= of_bin) return;
  cached.in_a_row = static_cast<uint8_t>(cached.ran_over != over ? 0 : cached.in_a_row + (cached.in_a_row < kInARow));
  const unsigned most = cached.in_a_row == kInARow || of_bin < kMagazineUsual ? of_bin : kMagazineUsual;
  if (cached.capacity >= most) return;
  const unsigned capacity = next_capacity(bin, cached, most);
  if (capacity < 2) return;
  if (!claim(b, charge(bin, capacity) - charge(bin, cached.capacity))) {
    b.used_up = true;
    return;
  }
  cached.capacity = static_cast<uint8_t>(capacity);
}

void thread_budget_shrink(ThreadBudget& b, BinId bin, unsigned capacity) {
  BinCache& cached = b.bins[index(bin)];
  b.left += charge(bin, cached.capacity) - charge(bin, capacity);
  cached.capacity = static_cast<uint8_t>(capacity);
}

// What a thread that sleeps keeps is lost to a limit's ladder: so at most a 64th of what may be held.
uint64_t thread_budget_claim_large() {
  constexpr unsigned kLimitShift = 6;
  const int64_t most = (options.thread_cache_pool << 20) / 2;
  const int64_t of_limit = limits_on() ? limit_state.begins.get() >> kLimitShift : most;
  return claim_of(large_claimed, least_of(most, of_limit)) ? kClaimBytes : 0;
}

void thread_budget_return_large(uint64_t claimed) {
  if (claimed != 0) large_claimed.sub(static_cast<int64_t>(claimed));
}

void thread_budget_return(ThreadBudget& b, int64_t keep) {
  while (b.claimed > 0 && b.left - kClaimBytes >= keep) {
    b.claimed -= kClaimBytes;
    b.left -= kClaimBytes;
    pool_claimed.sub(kClaimBytes);
  }
}

void thread_budget_lose(ThreadBudget& b) {
  lost_claims.add(b.claimed);
  b.claimed = b.left = 0;
}

void thread_budget_return_lost() {
  int64_t lost = lost_claims.get();
  // A compare-and-swap: two ticks at once would return more than was lost.
  if (lost < kClaimBytes || !lost_claims.replace(lost, lost - kClaimBytes)) return;
  pool_claimed.sub(kClaimBytes);
}

}  // namespace folio
