// The ladder: what is done as a limit comes near, or the system's memory runs short. policy/limit.h says which rung and
// how much; here it is done, by the program's slow calls and by the housekeeper.
//
// A call gives back no more than what is over the soft limit, which is what it, and others at this moment, have added.
// So the limit holds after each call, as far as there is anything to give back: first what has waited for a tick, then
// whatever is free, then what CPU caches and depot hold, then what the calling thread caches.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "policy/limit.h"

namespace folio {

// Limits and pressure as the options want them: when the process starts, since it opens files.
void ladder_start(Complain* complain);

// At the end of each slow call.
void ladder_keep();
inline void ladder_after_call() {
  if (limits_on()) ladder_keep();
}

// A store said no: where that was for a hard limit, all that can go goes, and the caller asks the store once more.
bool ladder_make_room(const char* function);
bool ladder_make_room_for_large(size_t bytes, const char* function);
void ladder_note_refused();

bool ladder_is_tight();

// Both limits, from now on. What is over goes at once.
void ladder_set(int64_t soft, int64_t hard);

// The housekeeper, at each poll: the system's pressure, and the program's functions.
void ladder_poll();
bool ladder_wants_housekeeper();

// A wish from outside, as clock.h's CollectRequest. kKeep: that limit stays.
struct LimitRequest {
  static constexpr int64_t kKeep = -1;
  Atomic<uint32_t> wanted, done;
  Atomic<int64_t> soft, hard;
};
extern LimitRequest limit_request;
void ladder_serve_request();

}  // namespace folio
