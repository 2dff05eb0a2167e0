// Opens and closes the seam, counts what is seen, and chooses objects at random.
#include "core/seam.h"

#include "arch/arch.h"
#include "cache/thread_cache.h"
#include "insight/countdown.h"
#include "insight/guards.h"
#include "insight/samples.h"
#include "os/os.h"
#include "space/huge.h"
#include "space/large.h"

// The contract of OpenTelemetry's eBPF profiler (its design document 00003, "memory profiling"): alloc of a sampled
// object, its size, and the bytes that it stands for; free of a sampled one.
FOLIO_PROBE_SEMAPHORE(folio_otel_memory_alloc);
FOLIO_PROBE_SEMAPHORE(folio_otel_memory_free);

namespace folio {

constinit Atomic<uint32_t> seam_mode{kNotStarted};
constinit SeamSetting seam_setting;
constinit SeamCounts seam_counts[kSeamShards];
__thread Countdown seam_countdown;

namespace {

constexpr Front true_front() {
  Front f{};
  for (size_t i = 0; i <= kSmallTableMost; ++i) f.small_cursor[i] = kSizes.small_cursor[i];
  for (size_t i = 0; i <= kMediumMost / 64; ++i) f.medium_bin[i] = kSizes.medium_bin[i];
  return f;
}

void fill_front(bool close) {
  for (size_t i = 0; i <= kSmallTableMost; ++i) {
    const uint16_t cursor = close ? uint16_t{0} : kSizes.small_cursor[i];
    reinterpret_cast<Hint<uint16_t>&>(front.small_cursor[i]).set(cursor);
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
  return now >= kOpen && !changing.exchange(true, order::acquire);
}
// [seam] release: pairs with begin_change. unseen: as there
void end_change() { changing.store(false, order::release); }

SeamCounts& shard() {
  const auto place = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(&seam_countdown)) >> 6;
  return seam_counts[place * 0x9e3779b97f4a7c15u >> 60];
}
static_assert(kSeamShards == 16);

}  // namespace

constinit Front front = true_front();

bool seam_close(uint64_t interval) {
  if (!begin_change()) return false;
  seam_setting.until_ms.set(0);
  seam_setting.carefully.set(0);
  seam_setting.interval.set(interval);  // a call that has read the interval before uses that one
  seam_setting.number.add(1);
  // [start] release: what the options say, again. unseen: as in begin_change
  seam_mode.store(kClosed, order::release);
  fill_front(true);
  end_change();
  return true;
}

bool seam_open() {
  if (!begin_change()) return false;
  const bool guarding = guard_interval.get() != 0;
  if (!guarding) fill_front(false);
  // [start] release: as in seam_close. unseen: as there
  seam_mode.store(guarding ? kGuarding : kOpen, order::release);
  end_change();
  return true;
}

bool seam_guard() {
  if (!begin_change()) return false;
  // Relaxed: only who changes it writes it. [start] release: as in seam_close. unseen: as there
  if (seam_mode.load(order::relaxed) == kOpen) seam_mode.store(kGuarding, order::release);
  fill_front(true);
  end_change();
  return true;
}

namespace {

// Whether calls are counted or sampled: closed, and not only for guarded objects. Relaxed: a call that still reads the
// mode before a change goes by it.
bool closed() { return seam_mode.load(order::relaxed) == kClosed; }

// Opens the seam where the tool that closed it has not renewed until_ms.
FOLIO_COLD void open_if_left() {
  const uint64_t until = seam_setting.until_ms.get();
  if (until != 0 && os::now_ms() > until) seam_open();
}

// Whether the next object, of `size` bytes, is chosen: the interval that decided it, or 0. The caller uses the interval
// returned, since the setting may have changed meanwhile, also to 0.
uint64_t choose(size_t size, uint64_t interval) {
  if (size > PTRDIFF_MAX) return 0;
  const uint64_t before = seam_countdown.random;
  const bool ends = seam_countdown.ends(size, interval, seam_setting.number.get());
  if (seam_countdown.random != before) open_if_left();
  return ends ? interval : 0;
}

void count(size_t size) {
  constexpr uint64_t kPollEach = 1024;
  SeamCounts& counts = shard();
  const unsigned bin = size <= kMediumMost ? index(bin_of(size)) : 0;
  if (counts.calls[bin].add(1) % kPollEach == 0) open_if_left();
  counts.bytes.add(size);
}

// Sets the object's mark, and returns what it was.
bool mark_seen(void* object, bool seen) {
  if (chunk_code(object) == kCodeGuarded) return guard_mark_seen(object, seen);
  HugeBlock* const block = huge_at(object);
  if (block == nullptr) return large_mark_seen(object, seen);
  const bool was = block->seen;
  block->seen = seen;
  return was;
}

}  // namespace

uint64_t seam_see(size_t size) {
  if (!closed()) return 0;
  const uint64_t interval = seam_setting.interval.get();
  if (interval != 0) return choose(size, interval);
  count(size);
  return 0;
}

void seam_chose(void* object, size_t size, uint64_t interval) {
  mark_seen(object, true);
  sample_object(object, size, interval, seam_setting.carefully.get() != 0);
  // Before the address may go to who frees it, by a relaxed store as well (docs/CONCURRENCY.md, "Addresses").
  arch::store_barrier();
  SeamCounts& counts = shard();
  counts.chosen.add(1);
  counts.chosen_bytes.add(size);
  if (folio_otel_memory_alloc != 0) {
    FOLIO_PROBE("otel_memory", "alloc", "folio_otel_memory_alloc", FOLIO_PROBE_3, reinterpret_cast<uintptr_t>(object),
                size, seam_weight(size, interval));
  }
}

void seam_freed(const void* object) {
  if (folio_otel_memory_free != 0) {
    FOLIO_PROBE("otel_memory", "free", "folio_otel_memory_free", FOLIO_PROBE_1, reinterpret_cast<uintptr_t>(object), 0,
                0);
  }
  sample_end(object);
  shard().freed.add(1);
}

uint64_t seam_weight(size_t size, uint64_t interval) {
  // 1 - exp(-x), as t / (1 + t) with 1 + t = exp(x) = (the series of x / 2^k)^(2^k): to 1e-9.
  const double x = static_cast<double>(size) / static_cast<double>(interval);
  constexpr double kNearlyOne = 30;
  if (size == 0 || x > kNearlyOne) return size;
  unsigned halved = 0;
  double part = x;
  while (part > 1.0 / 16) {
    part /= 2;
    ++halved;
  }
  double t = part * (1 + part / 2 * (1 + part / 3 * (1 + part / 4 * (1 + part / 5 * (1 + part / 6)))));
  for (; halved != 0; --halved) t *= 2 + t;
  return static_cast<uint64_t>(static_cast<double>(size) * (1 + t) / t);
}

void seam_leaves(void* object) {
  if (mark_seen(object, false)) seam_freed(object);
}

void seam_resized(void* object, size_t size, bool seen) {
  seam_leaves(object);
  uint64_t interval = seen && closed() ? seam_setting.interval.get() : 0;
  if (interval != 0) interval = choose(size, interval);
  if (interval != 0) seam_chose(object, size, interval);
}

void seam_after_fork() {
  seam_countdown = {};  // else all children would choose the same
  // Another thread or a tool may have been in the middle of a change, which nobody ends in the child: the front is
  // filled anew by the mode. Relaxed, all: the child has one thread.
  const bool closed_here = seam_mode.load(order::relaxed) > kOpen;
  if (changing.exchange(false, order::relaxed) || closed_here) fill_front(closed_here);  // relaxed: as above
  samples_after_fork();
}

}  // namespace folio
