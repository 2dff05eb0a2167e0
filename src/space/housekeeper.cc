// The state machine of the housekeeper's word: each change one read-modify-write, and a futex to sleep on.
#include "space/housekeeper.h"

#include "os/os.h"

namespace folio {

namespace {

// The word: | process : 29 | state : 3 |. The process's number is in it, so that of two threads that start a
// housekeeper at once the second sees the first's, and a process that is a copy sees that the housekeeper is not its
// own.
enum : uint32_t { kNone, kAtWork, kResting, kAsleep, kLingering, kCalled, kRung };
constexpr uint32_t kStateMask = 7, kProcessShift = 3;
constinit Atomic<uint32_t> word{kNone};

uint32_t state_in(uint32_t found) { return found & kStateMask; }
uint32_t in_state(uint32_t found, uint32_t state) { return (found & ~kStateMask) | state; }
uint32_t own_word(uint32_t state) { return os::process_id() << kProcessShift | state; }
bool is_own(uint32_t found) { return found >> kProcessShift == own_word(kNone) >> kProcessShift; }

uint32_t state_of(Rest rest) {
  return rest == Rest::kUntilCalled ? kAsleep : rest == Rest::kLinger ? kLingering : kResting;
}

}  // namespace

constinit __thread bool in_housekeeper = false;

bool housekeeper_enter() {
  uint32_t found = word.load(order::relaxed);  // relaxed: a look first
  if (state_in(found) != kNone && is_own(found)) return false;
  // [housekeeper] acquire: the one before has left; pairs with housekeeper_leave.
  return word.compare_exchange(found, own_word(kAtWork), order::acquire);
}

void housekeeper_forget() { word.store(kNone, order::relaxed); }  // relaxed: there is none

bool housekeeper_is_own() {
  const uint32_t found = word.load(order::relaxed);  // relaxed: the word is all there is to know
  return state_in(found) != kNone && is_own(found);
}

Woken housekeeper_rest(Rest rest, uint64_t ms) {
  uint32_t at_work = own_word(kAtWork);
  const uint32_t resting = in_state(at_work, state_of(rest));
  bool slept = true;
  // Relaxed, all three: the word is all there is to know.
  if (word.compare_exchange(at_work, resting, order::relaxed)) slept = os::wait(word, resting, ms);
  const uint32_t found = state_in(word.exchange(in_state(resting, kAtWork), order::relaxed));  // relaxed: as above
  if (found == kRung) return Woken::kRung;
  if (found == kCalled) return Woken::kCalled;
  return slept ? Woken::kTimeIsUp : Woken::kRefused;
}

bool housekeeper_leave() {
  uint32_t at_work = own_word(kAtWork);
  return word.compare_exchange(at_work, kNone, order::release);  // [housekeeper] release: pairs with housekeeper_enter
}

bool housekeeper_sleeps() { return state_in(word.load(order::relaxed)) == kAsleep; }  // relaxed: a hint

void housekeeper_call() {
  uint32_t found = word.load(order::relaxed);  // relaxed: the compare-and-swap decides
  if (state_in(found) != kAsleep) return;
  // Relaxed: the word is all there is to know. One of several callers wakes it.
  if (word.compare_exchange(found, in_state(found, kCalled), order::relaxed)) os::wake(word);
}

void housekeeper_ring() {
  uint32_t found = word.load(order::relaxed);  // relaxed: the compare-and-swap decides
  while (state_in(found) != kNone && state_in(found) != kRung) {
    const uint32_t before = state_in(found);
    if (!word.compare_exchange(found, in_state(found, kRung), order::relaxed)) continue;  // relaxed: as above
    if (before == kResting || before == kAsleep) os::wake(word);
    return;
  }
}

}  // namespace folio
