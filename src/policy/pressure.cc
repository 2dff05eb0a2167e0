// Reads PSI and the cgroup's events, turns them into a level, and calls the program's functions.
#include "policy/pressure.h"

#include "base/text.h"
#include "os/os.h"
#include "policy/cgroup.h"

namespace folio {

namespace {

constexpr uint64_t kNearShare = 5, kTightShare = 15, kAllShare = 10;  // percent
constexpr uint64_t kAgainMs = 1000;

// The files are opened before there is another thread. `seen`, the last poll, is touched by the housekeeper alone.
constinit os::KeptFile stalls, events;
struct Seen {
  uint64_t at_ms;
  int64_t some_us, all_us;
  int64_t met, out;  // events
};
constinit Seen seen{};

// The number behind a word at the start of a line, or further on behind `key`; 0 if there is none.
int64_t number_after(const char* text, size_t length, const char* word, const char* key) {
  const char* const words[] = {word, key};
  size_t at = 0;
  for (unsigned w = 0; w < 2; ++w) {
    const size_t n = __builtin_strlen(words[w]);
    for (;; ++at) {
      if (at + n > length) return 0;
      const bool starts = w == 1 || at == 0 || text[at - 1] == '\n';
      if (starts && __builtin_memcmp(text + at, words[w], n) == 0) break;
    }
    at += n;
  }
  const int64_t n = number_in(text + at, length - at);
  return n < 0 ? 0 : n;
}

bool keep_in(const char* folder, const char* name, os::KeptFile* file) {
  if (folder[0] == '\0') return false;
  Text path;
  path << folder << name;
  path.put('\0');
  return path.length() < os::kPathMost && os::keep_file(path.data(), file);
}

// What happened between two polls, as a level.
uint32_t level_between(const Seen& before, const Seen& now) {
  const auto ms = static_cast<int64_t>(now.at_ms - before.at_ms);
  if (ms <= 0) return kCalm;
  const auto share = [&](int64_t us) { return static_cast<uint64_t>(us < 0 ? 0 : us / ms / 10); };
  const uint64_t some = share(now.some_us - before.some_us), all = share(now.all_us - before.all_us);
  if (all >= kAllShare || now.out > before.out) return kAtSoft;
  if (some >= kTightShare) return kTight;
  return some >= kNearShare || now.met > before.met ? kNear : kCalm;
}

// A function and its level in one word, so that no level is taken for another function's; 0 is free. Relaxed: the word
// is all there is to know, and a level that is seen late is the program's own race.
struct Place {
  Atomic<uint64_t> word;
  uint64_t seen = 0;  // the housekeeper's own, as the rest: the word that it is about
  uint32_t notified = kCalm;
  uint64_t notified_ms = 0;
};
constinit Place places[kPressureFunctions];
constexpr unsigned kLevelShift = 61;  // no address of code has these bits
static_assert(kAtHard < 8);
constexpr uint64_t kFunctionBits = (uint64_t{1} << kLevelShift) - 1;

}  // namespace

void pressure_start(Complain* complain) {
  if (options.pressure == kPressureOff) return;
  const char* why = nullptr;
  if (options.housekeeper == kHousekeeperOff) {
    limit_state.problems.set_bits(kPressureWithoutKeeper);
    why = "the housekeeper, which would look, is off";
  } else {
    MemoryCgroup cgroup;
    find_memory_cgroup(&cgroup);
    const bool has_stalls =
        keep_in(cgroup.folder, "/memory.pressure", &stalls) || os::keep_file("/proc/pressure/memory", &stalls);
    const bool has_events = keep_in(cgroup.folder, "/memory.events", &events);
    if (has_stalls || has_events) return;
    limit_state.problems.set_bits(kNoPressureFiles);
    why = "neither /proc/pressure/memory nor a cgroup's memory.pressure or memory.events can be read";
  }
  Text line;
  line << "folio: FOLIO_OPTIONS: \"pressure:on\": " << why << "; off holds (see docs/memory.md)";
  complain(line.data(), line.length());
  options.pressure = kPressureOff;
}

void pressure_poll(uint64_t now_ms) {
  if (options.pressure == kPressureOff) return;
  char text[512];
  Seen now{now_ms, 0, 0, 0, 0};
  size_t n = os::read_kept(stalls, text, sizeof text);
  now.some_us = number_after(text, n, "some ", "total=");
  now.all_us = number_after(text, n, "full ", "total=");
  n = os::read_kept(events, text, sizeof text);
  now.met = number_after(text, n, "high ", "") + number_after(text, n, "max ", "");
  now.out = number_after(text, n, "oom ", "");
  if (now.at_ms == seen.at_ms) return;  // too soon to say
  const uint32_t level = seen.at_ms == 0 ? kCalm : level_between(seen, now);
  seen = now;
  limit_state.pressure.set(level);
}

bool pressure_call(int level, PressureFunction* function) {
  if (function == nullptr || level < 0 || level > static_cast<int>(kAtHard)) return false;
  const auto address = reinterpret_cast<uint64_t>(function);
  const uint64_t word = level == 0 ? 0 : address | static_cast<uint64_t>(level) << kLevelShift;
  const auto replace = [word](Place& place, uint64_t before) {
    return place.word.compare_exchange(before, word, order::relaxed);  // relaxed: see Place
  };
  // In each place that has it: of two threads that call at once each may have taken one.
  bool found = level == 0;
  for (Place& place : places) {
    const uint64_t before = place.word.load(order::relaxed);  // relaxed: see Place
    // Where another thread has just set another level, its call counts as the later one.
    if ((before & kFunctionBits) != address) continue;
    found |=
        replace(place, before) || (place.word.load(order::relaxed) & kFunctionBits) == address;  // relaxed: see Place
  }
  for (Place& place : places) found = found || replace(place, 0);
  return found;
}

bool pressure_has_functions() {
  for (const Place& place : places) {
    if (place.word.load(order::relaxed) != 0) return true;  // relaxed: a hint
  }
  return false;
}

void pressure_notify(Level highest, uint64_t now_ms) {
  for (Place& place : places) {
    const uint64_t word = place.word.load(order::relaxed);  // relaxed: see Place
    if (word != place.seen) place.notified = kCalm;
    place.seen = word;
    const bool reached = word != 0 && highest >= word >> kLevelShift;
    const bool again = place.notified >= highest && now_ms < place.notified_ms + kAgainMs;
    if (!reached) place.notified = kCalm;
    if (!reached || again) continue;
    place.notified = highest;
    place.notified_ms = now_ms;
    reinterpret_cast<PressureFunction*>(word & kFunctionBits)(static_cast<int>(highest));
  }
}

}  // namespace folio
