// For *_explore_test.cc: one interruption at a chosen atomic operation. The library they link tells the explorer of
// each; here the n-th one first runs a function, on the same thread, as if another thread had come just then.
#pragma once

#include <functional>

#include "stress/explorer/explorer.h"

namespace folio_test {

inline unsigned explore_countdown = 0;  // 0: nobody waits
inline std::function<void()> explore_interruption;

// Runs `body`, and `interruption` before the point-th (from 1) atomic operation in it. False if it has fewer.
inline bool explore_at(unsigned point, const std::function<void()>& body, const std::function<void()>& interruption) {
  explore_countdown = point;
  explore_interruption = interruption;
  folio_exploring = true;
  explorer::outside_point = [] {
    if (explore_countdown != 0 && --explore_countdown == 0) explore_interruption();
  };
  body();
  const bool ran = explore_countdown == 0;
  explore_countdown = 0;
  return ran;
}

}  // namespace folio_test
