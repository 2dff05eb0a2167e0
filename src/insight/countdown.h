// Chooses one object in so many bytes, at random (a Poisson process: an object of s bytes with probability
// 1 - exp(-s / interval), whatever was allocated before). Each thread has a countdown of its own.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace folio {

struct Countdown {
  int64_t bytes;  // that may still be allocated until an object is chosen, or, with `more`, until the next draw
  uint64_t random;
  uint32_t change;  // number of the setting for which `bytes` was drawn: after a change it is drawn anew
  bool more;        // the distance drawn was above kBytesMost

  // Whether the next object, of `size` bytes (at most PTRDIFF_MAX), is chosen. The interval is not 0. `random` changes
  // at least once in kBytesMost bytes.
  static constexpr int64_t kBytesMost = 1 << 20;
  bool ends(size_t size, uint64_t interval, uint32_t now);

 private:
  void draw(uint64_t interval, uint32_t now, int64_t passed);
};

}  // namespace folio
