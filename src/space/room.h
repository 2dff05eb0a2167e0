// How much more the stores may hold: asked before they make more pages resident. policy/limit sets the bounds. Where
// there is no room, a store behaves as if the kernel had no memory.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "sync/relaxed.h"

namespace folio {

// Written by policy/limit.
struct MemoryRoom {
  static constexpr int64_t kUnlimited = INT64_MAX;
  Hint<int64_t> most_small{kUnlimited};  // what may be held after a request for objects of bins
  Hint<int64_t> most_large{kUnlimited};  // and for large and huge ones
  Hint<bool> tight{false};               // nothing is to become resident before it is needed
  Hint<bool> counted{false};             // a limit is set, soft or hard: nothing may be resident that no count shows
};
extern MemoryRoom memory_room;

// All that Folio holds: pages of objects, free and cached ones included, live huge objects as a whole, metadata.
int64_t held_bytes();

// Whether there is room for so much more.
bool has_room_slow(size_t bytes, int64_t most);
inline bool has_room(size_t bytes) {
  const int64_t most = memory_room.most_small.get();
  return most == MemoryRoom::kUnlimited || has_room_slow(bytes, most);
}
inline bool has_room_for_large(size_t bytes) {
  const int64_t most = memory_room.most_large.get();
  return most == MemoryRoom::kUnlimited || has_room_slow(bytes, most);
}
// The same for a huge object. So many bytes count as live from then on, and the caller makes them so or takes them off:
// else two requests at once would get the same room.
bool take_room_for_huge(size_t bytes);
inline bool room_is_limited() { return memory_room.most_small.get() != MemoryRoom::kUnlimited; }
inline bool room_is_counted() { return memory_room.counted.get(); }
inline bool room_is_tight() { return memory_room.tight.get(); }

}  // namespace folio
