// The ladder: what is done as a limit comes near, or the system's memory runs short. policy/limit.h says which level
// and how much; the program's slow calls and the housekeeper act here.
//
// A call gives back what is over the soft limit: what it and concurrent calls have added. So the limit holds after each
// call, as far as there is anything to give back: first free pages that have waited for a tick, then all free pages,
// then what CPU caches and depot hold, then what the calling thread caches.
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

// After a store refused a request: if a hard limit may be the reason, gives back all that can go, and returns true: the
// caller asks the store once more.
bool ladder_make_room(const char* function);
bool ladder_make_room_for_large(size_t bytes, const char* function);
void ladder_note_refused(size_t bytes);

bool ladder_is_tight();

// Both limits, from now on. What is over goes at once.
void ladder_set(int64_t soft, int64_t hard);

// Called by the housekeeper at each poll: reads the system's pressure, keeps the limits, calls the program's functions.
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
