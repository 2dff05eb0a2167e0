#include "core/seam.h"

#include "arch/arch.h"
#include "base/bits.h"
#include "cache/thread_cache.h"
#include "os/os.h"
#include "space/huge.h"
#include "space/large.h"

namespace folio {

constinit Atomic<uint32_t> seam_mode{kNotStarted};
constinit SeamSetting seam_setting;
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
    reinterpret_cast<Hint<uint16_t>&>(front.small_top[i]).set(top);
  }
  for (size_t i = 0; i <= kMediumMost / 64; ++i) {
    const uint8_t bin = close ? uint8_t{0} : kSizes.medium_bin[i];
    reinterpret_cast<Hint<uint8_t>&>(front.medium_bin[i]).set(bin);
  }
}

constinit Atomic<bool> changing{false};

bool begin_change() {
  const uint32_t now = seam_mode.load(order::relaxed);  // relaxed: once started it stays so
  // [seam] acquire: sees the front that the change before has written; pairs with end_change. unseen: the explorer
  // has no scenario of the seam, whose words order nothing else
  return (now == kOpen || now == kClosed) && !changing.exchange(true, order::acquire);
}
// [seam] release: pairs with begin_change. unseen: as there
void end_change() { changing.store(false, order::release); }

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

bool seam_close(uint64_t interval) {
  if (!begin_change()) return false;
  seam_setting.interval.set(interval);  // who meets the one before goes on by that
  seam_setting.number.add(1);
  // [start] release: what the options say, again. unseen: as in begin_change
  seam_mode.store(kClosed, order::release);
  fill_front(true);
  end_change();
  return true;
}

bool seam_open() {
  if (!begin_change()) return false;
  fill_front(false);
  // [start] release: as in seam_close. unseen: as there
  seam_mode.store(kOpen, order::release);
  end_change();
  return true;
}

bool seam_see(size_t size) {
  SeamCounts& counts = shard();
  const unsigned bin = size <= kMediumMost ? index(bin_of(size)) : 0;
  counts.calls[bin].add(1);
  counts.bytes.add(size);
  const uint64_t interval = seam_setting.interval.get();
  if (interval == 0 || size > PTRDIFF_MAX) return false;
  const uint32_t change = seam_setting.number.get();
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
  counts.chosen.add(1);
  counts.chosen_bytes.add(size);
}

void seam_freed() { shard().freed.add(1); }

void seam_after_fork() { changing.store(false, order::relaxed); }  // relaxed: the child has one thread

}  // namespace folio
