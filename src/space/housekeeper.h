// The housekeeper's word: whether there is one, whether it rests, and how it is woken. What it does is in
// core/clock.cc.
//
//           enter              rest
//   kNone  ------->  kAtWork  ------->  kResting, kAsleep, kLingering
//     ^                | ^                 | time is up       | call, by who has work: only from kAsleep
//     +----------------+ +-----------------+                  v
//           leave      ^                                    kCalled, kRung     (ring, by a thread that ends: from
//                      +--- its next rest finds that ----------+                kAtWork too)
//
// Every change, but housekeeper_forget's, is one read-modify-write of the word, so a ring between a look at the threads
// and the rest after it is not lost. It sleeps by a futex on the word: who rings or calls makes at most one system
// call, and none while nobody rests. Nobody waits for the housekeeper.
#pragma once

#include <stdint.h>

#include "base/atomic.h"

namespace folio {

enum class Woken { kTimeIsUp, kCalled, kRung, kRefused };

// ---- Who starts it ----

// True: there was no housekeeper, and the caller must start one, or call housekeeper_forget. A process that was copied
// without fork's handlers (a raw clone) has the word of a housekeeper that the copy lacks.
bool housekeeper_enter();
void housekeeper_forget();  // there is none: it could not be started, or this is the child of a fork
bool housekeeper_is_own();  // there is one, of this process, not of the one that it is a copy of

// ---- The housekeeper itself ----

// True in the housekeeper's thread alone, for system calls that a filter may forbid to the program's threads.
extern __thread bool in_housekeeper;

// A ring does not end kLinger, whose caller finds it afterwards: where threads come and go all the time, each end of a
// thread would wake the housekeeper.
enum class Rest { kBetweenPolls, kUntilCalled, kLinger };
// kRefused: the system does not let it sleep.
Woken housekeeper_rest(Rest rest, uint64_t ms);
bool housekeeper_leave();  // false: it was rung meanwhile

// ---- The program's threads ----

bool housekeeper_sleeps();  // until it is called: one load
void housekeeper_call();    // wakes it, if it sleeps
void housekeeper_ring();    // a thread ends: the housekeeper is to check at once which threads are left

}  // namespace folio
