#include "space/housekeeper.h"

#include "os/os.h"

namespace folio {

namespace {

enum : uint32_t { kNone, kAtWork, kResting, kAsleep, kLingering, kCalled, kRung };
constinit Atomic<uint32_t> word{kNone};
constinit Atomic<uint32_t> process{0};  // whose housekeeper that is

uint32_t state_of(Rest rest) {
  return rest == Rest::kUntilCalled ? kAsleep : rest == Rest::kLinger ? kLingering : kResting;
}

}  // namespace

bool housekeeper_enter() {
  const uint32_t self = os::process_id();
  uint32_t found = word.load(order::relaxed);  // relaxed: a look first
  // Relaxed: who copied the process copied both words.
  if (found != kNone && process.load(order::relaxed) == self) return false;
  // [housekeeper] acquire: the one before has left; pairs with housekeeper_leave.
  if (!word.compare_exchange(found, kAtWork, order::acquire)) return false;
  process.store(self, order::relaxed);  // relaxed: read by threads of this process, or of copies of it
  return true;
}

void housekeeper_forget() { word.store(kNone, order::relaxed); }  // relaxed: there is none

Woken housekeeper_rest(Rest rest, uint64_t ms) {
  const uint32_t state = state_of(rest);
  uint32_t at_work = kAtWork;
  bool slept = true;
  // Relaxed, all three: the word is all there is to know.
  if (word.compare_exchange(at_work, state, order::relaxed)) slept = os::wait(word, state, ms);
  const uint32_t found = word.exchange(kAtWork, order::relaxed);  // relaxed: as above
  if (found == kRung) return Woken::kRung;
  if (found == kCalled) return Woken::kCalled;
  return slept ? Woken::kTimeIsUp : Woken::kRefused;
}

bool housekeeper_leave() {
  uint32_t at_work = kAtWork;
  return word.compare_exchange(at_work, kNone, order::release);  // [housekeeper] release: pairs with housekeeper_enter
}

bool housekeeper_sleeps() { return word.load(order::relaxed) == kAsleep; }  // relaxed: a hint

void housekeeper_call() {
  uint32_t asleep = kAsleep;
  // Relaxed: the word is all there is to know. One of several callers wakes it.
  if (word.compare_exchange(asleep, kCalled, order::relaxed)) os::wake(word);
}

void housekeeper_ring() {
  uint32_t found = word.load(order::relaxed);  // relaxed: the compare-and-swap decides
  while (found != kNone && found != kRung) {
    if (!word.compare_exchange(found, kRung, order::relaxed)) continue;  // relaxed: as above
    if (found == kResting || found == kAsleep) os::wake(word);
    return;
  }
}

}  // namespace folio
