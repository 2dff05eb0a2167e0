// Does what the level asks for: empties caches, purges up to the excess, makes room for a request that was refused.
#include "core/ladder.h"

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_cache.h"
#include "core/give_back.h"
#include "policy/pressure.h"
#include "space/housekeeper.h"
#include "space/room.h"

namespace folio {

constinit LimitRequest limit_request;

namespace {

constinit Atomic<bool> tight{false};  // caches have been emptied, and keep little

// kTight, when it begins and when it ends.
void follow(Level level) {
  const bool wanted = level >= kTight;
  if (tight.load(order::relaxed) == wanted) return;  // relaxed: a look first
  // Relaxed: one of several threads does it.
  if (tight.exchange(wanted, order::relaxed) == wanted) return;
  cpu_caches_spare(process_caches, wanted);
  if (wanted) empty_shared_caches();
}

// kAtSoft: gives back so many bytes, in the order that costs the program least.
size_t give_back(size_t bytes) {
  size_t given = purge_some(bytes);
  if (given >= bytes) return given;
  empty_shared_caches();
  given += purge_some(bytes - given);
  if (given >= bytes || thread_state.cache == nullptr) return given;
  thread_cache_drain(thread_state.cache, "free");
  return given + purge_some(bytes - given);
}

}  // namespace

void ladder_start(Complain* complain) {
  limit_start(complain);
  pressure_start(complain);
}

FOLIO_NOINLINE void ladder_keep() {
  const Level before = level_now(), level = limit_poll();
  follow(level_now());
  if (level > before && pressure_has_functions()) housekeeper_call();
  if (level < kAtSoft) return;
  if (const size_t excess = limit_excess()) limit_gave_back(give_back(excess), excess);
}

bool ladder_make_room(const char* function) {
  constexpr size_t kUnitMost = kClusterBytes / 2;  // what is made resident at once is less
  if (has_room(kUnitMost)) return false;
  collect_everything(function);
  return true;
}

bool ladder_make_room_for_large(size_t bytes, const char* function) {
  if (has_room_for_large(bytes + 2 * kGranuleBytes)) return false;
  collect_everything(function);
  return true;
}

void ladder_note_refused(size_t bytes) {
  if (limits_on()) limit_note_refused(bytes);
}

bool ladder_is_tight() { return tight.load(order::relaxed); }  // relaxed: a hint

void ladder_set(int64_t soft, int64_t hard) {
  options.limit_soft = soft;
  options.limit_hard = hard;
  limit_set(soft, hard);
  follow(level_now());
  if (limits_on() && level_now() >= kAtSoft) collect_everything("folio_set_limit");
  limit_poll();
}

void ladder_poll() {
  if (options.pressure == kPressureOn) {
    pressure_poll(os::now_ms());
    follow(level_now());
    if (limit_state.pressure.get() >= kAtSoft) purge_everything(PurgeWhich::kAll, kUnlimited);
  }
  if (limits_on()) ladder_keep();
  if (options.pressure == kPressureOn || limits_on()) {
    const Level highest = limit_take_highest();
    if (pressure_has_functions()) pressure_notify(highest, os::now_ms());
  }
}

bool ladder_wants_housekeeper() { return options.pressure == kPressureOn || pressure_has_functions(); }

void ladder_serve_request() {
  // Relaxed: numbers, written and read by system calls of another process; it wrote the limits first.
  const uint32_t wanted = limit_request.wanted.load(order::relaxed);
  if (wanted == limit_request.done.load(order::relaxed)) return;  // relaxed: as above
  int64_t soft = limit_request.soft.load(order::relaxed);         // relaxed: as above
  int64_t hard = limit_request.hard.load(order::relaxed);         // relaxed: as above
  if (soft == LimitRequest::kKeep) soft = limit_state.soft.get();
  if (hard == LimitRequest::kKeep) hard = limit_state.hard.get();
  ladder_set(soft, hard);
  limit_request.done.store(wanted, order::relaxed);  // relaxed: as above
}

}  // namespace folio
