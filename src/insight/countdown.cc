// Draws the exponentially distributed distance to the next chosen object.
#include "insight/countdown.h"

#include "base/bits.h"
#include "os/os.h"

namespace folio {

namespace {

// With the thread's number, since time and address may be the same for threads that come and go, and for a fork's
// children.
uint64_t first_state(const uint64_t& state) {
  constexpr uint64_t kMix = 0x9e3779b97f4a7c15u;
  const uint64_t mixed = (reinterpret_cast<uintptr_t>(&state) ^ os::now_ms() << 20) * kMix;
  return (mixed ^ mixed >> 32 ^ os::thread_id()) * kMix | 1;
}

// xorshift64* [Vigna 2016].
uint64_t next_random(uint64_t& state) {
  if (state == 0) state = first_state(state);
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

}  // namespace

// A new distance is drawn without regard to the bytes before: a Poisson process has no memory.
void Countdown::draw(uint64_t interval, uint32_t now, int64_t passed) {
  constexpr double kMost = 1e18;
  const double drawn = exponential(next_random(random)) * static_cast<double>(interval);
  bytes = static_cast<int64_t>(drawn < kMost ? drawn : kMost) - passed;
  more = bytes > kBytesMost;
  if (more) bytes = kBytesMost;
  change = now;
}

bool Countdown::ends(size_t size, uint64_t interval, uint32_t now) {
  if (change != now) draw(interval, now, 0);
  bytes -= static_cast<int64_t>(size);
  if (bytes > 0) return false;
  if (more) draw(interval, now, -bytes);
  if (bytes > 0) return false;
  draw(interval, now, 0);
  return true;
}

}  // namespace folio
