#include "core/seam.h"

#include "arch/arch.h"
#include "base/bits.h"
#include "cache/thread_cache.h"
#include "os/os.h"
#include "space/huge.h"
#include "space/large.h"

namespace folio {

constinit Atomic<uint32_t> seam_mode{kNotStarted};
constinit SeamRequest seam_request;
constinit SeamCounts seam_counts[kSeamShards];

namespace {

constexpr Front true_front() {
  Front f{};
  for (size_t i = 0; i <= kSmallTableMost; ++i) f.small_top[i] = kSizes.small_top[i];
  for (size_t i = 0; i <= kMediumMost / 64; ++i) f.medium_bin[i] = kSizes.medium_bin[i];
  return f;
}

void fill_front(bool close) {
  for (size_t i = 0; i <= kSmallTableMost; ++i) {
    const uint16_t top = close ? uint16_t{0} : kSizes.small_top[i];
    reinterpret_cast<Atomic<uint16_t>&>(front.small_top[i]).store(top, order::relaxed);  // relaxed: see front_small_top
  }
  for (size_t i = 0; i <= kMediumMost / 64; ++i) {
    const uint8_t bin = close ? uint8_t{0} : kSizes.medium_bin[i];
    reinterpret_cast<Atomic<uint8_t>&>(front.medium_bin[i]).store(bin, order::relaxed);  // relaxed: see front_small_top
  }
}

// The thread's own: how many bytes it may still allocate before an object is chosen.
struct Countdown {
  int64_t bytes;
  uint64_t random;
  uint32_t change;  // of which it was drawn: what is left from another interval is void
};
__thread Countdown countdown;

SeamCounts& shard() {
  const auto place = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(&countdown)) >> 6;
  return seam_counts[place * 0x9e3779b97f4a7c15u >> 60];
}
static_assert(kSeamShards == 16);

// xorshift64* [Vigna 2016].
uint64_t next_random(uint64_t& state) {
  if (state == 0) state = (reinterpret_cast<uintptr_t>(&state) ^ os::now_ms() << 20) * 0x9e3779b97f4a7c15u | 1;
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545f4914f6cdd1du;
}

// -ln(u) for u uniform in (0, 1]: of the exponent exactly, of the mantissa m by 2 artanh((m - 1) / (m + 1)), to 1e-5.
// The libc's log is not for this layer: it may be resolved by a call of malloc.
double exponential(uint64_t random) {
  const uint64_t bits = random | 1;
  const unsigned top = highest_bit(bits);
  const double m = static_cast<double>(bits) / static_cast<double>(uint64_t{1} << top);
  const double t = (m - 1) / (m + 1), q = t * t;
  const double ln_m = 2 * t * (1 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q / 9))));
  return (64 - top) * 0.69314718055994531 - ln_m;
}

void draw(uint64_t interval, uint32_t change) {
  constexpr double kMost = 1e18;
  const double bytes = exponential(next_random(countdown.random)) * static_cast<double>(interval);
  countdown.bytes = static_cast<int64_t>(bytes < kMost ? bytes : kMost);
  countdown.change = change;
}

}  // namespace

constinit Front front = true_front();

bool seam_ask(bool close, uint64_t interval) {
  const uint32_t now = seam_mode.load(order::relaxed);  // relaxed: decided by the exchange
  if (now != kOpen && now != kClosed) return false;
  uint32_t expected = now;
  // Relaxed: who asks at once gets one of the wishes; as a tool outside does, which writes and looks at `done`.
  seam_request.close.store(close, order::relaxed);
  seam_request.interval.store(interval, order::relaxed);                                             // relaxed: above
  seam_request.wanted.store(seam_request.done.load(order::relaxed) + 1, order::relaxed);             // relaxed: above
  if (!seam_mode.compare_exchange(expected, kAsked, order::release)) return false;  // [seam] release: pairs with seam_change
  seam_change();
  return true;
}

void seam_change() {
  uint32_t now = kAsked;
  // [seam] acquire: sees the wish; pairs with seam_ask. Closed from here on: whom the table sends here is seen.
  if (!seam_mode.compare_exchange(now, kChanging, order::acquire)) return;
  const uint32_t wanted = seam_request.wanted.load(order::relaxed);    // relaxed: after the mode
  const bool close = seam_request.close.load(order::relaxed) != 0;     // relaxed: after the mode
  fill_front(close);
  seam_request.done.store(wanted, order::release);  // [seam] release: who sees it sees the table
  now = kChanging;
  // Release: [start], what the options say. It fails where somebody has asked again: the next slow call makes that.
  seam_mode.compare_exchange(now, close ? kClosed : kOpen, order::release);
}

bool seam_see(size_t size) {
  SeamCounts& counts = shard();
  counts.calls.fetch_add(1, order::relaxed);     // relaxed: a statistic
  counts.bytes.fetch_add(size, order::relaxed);  // relaxed: a statistic
  const uint64_t interval = seam_request.interval.load(order::relaxed);  // relaxed: of the wish before or of this one
  if (interval == 0) return false;
  const uint32_t change = seam_request.wanted.load(order::relaxed);  // relaxed: as above
  if (countdown.change != change) draw(interval, change);
  countdown.bytes -= static_cast<int64_t>(size);
  if (countdown.bytes > 0) return false;
  draw(interval, change);
  return true;
}

void seam_chose(void* object, size_t size) {
  if (HugeBlock* block = huge_at(object)) {
    block->seen = true;
  } else {
    large_mark_seen(object);
  }
  SeamCounts& counts = shard();
  counts.chosen.fetch_add(1, order::relaxed);           // relaxed: a statistic
  counts.chosen_bytes.fetch_add(size, order::relaxed);  // relaxed: a statistic
}

void seam_freed() { shard().freed.fetch_add(1, order::relaxed); }  // relaxed: a statistic

void seam_after_fork() {
  uint32_t now = kChanging;
  seam_mode.compare_exchange(now, kAsked, order::relaxed);  // relaxed: a child of one thread
}

}  // namespace folio
