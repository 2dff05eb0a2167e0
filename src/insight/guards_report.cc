// Reports of misused guarded objects. They may be written in a signal handler, on a small stack of its own: so one
// line's buffer at a time.
#include "config/options.h"
#include "config/size_classes.h"
#include "insight/guards.h"
#include "os/os.h"
#include "os/report.h"

namespace folio {

namespace {

constexpr const char* kAnchor = "guarded-objects";
constexpr size_t kPathMost = 256;
constinit char program[kPathMost + 1] = {};
constinit Atomic<uint32_t> reporting{0};  // threads

Text& put_object(Text& text, const GuardPlace& place) {
  return text << "a guarded object of " << uint64_t{place.size} << " bytes at " << static_cast<const void*>(place.base);
}

// `first_exact`: the first is an instruction; all others are what calls return to, which may be another line than the
// call's, so the byte before is named.
void write_frames(Text& text, const Frames& frames, bool first_exact = false) {
  if (frames.at[0] == nullptr) {
    text << "folio:     no stack: the libc does not tell where code lies (glibc before 2.35, musl, some static "
            "programs)";
    write_line(text);
  }
  for (unsigned i = 0; i < kFramesMost && frames.at[i] != nullptr; ++i) {
    text << "folio:     #" << uint64_t{i} << " ";
    const auto at = reinterpret_cast<uintptr_t>(frames.at[i]) - (i == 0 && first_exact ? 0 : 1);
    os::Module module{};
    if (os::find_module(reinterpret_cast<void*>(at), &module)) {
      text << (module.path == nullptr ? program : module.path) << "+";
    }
    text << reinterpret_cast<const void*>(at - module.bias);
    write_line(text);
  }
}

void write_call(Text& text, const char* did, const GuardCall& call) {
  const uint64_t now = os::now_ms();
  text << "folio:   " << did << " by thread " << uint64_t{call.thread} << ", " << (now > call.ms ? now - call.ms : 0)
       << " ms ago:";
  write_line(text);
  write_frames(text, call.frames);
}

// Who allocated the object, and who freed it.
void write_calls(Text& text, const GuardPlace& place) {
  write_call(text, "allocated", place.slot->allocated);
  if (place.slot->freed.thread != 0) write_call(text, "freed", place.slot->freed);
  text << "folio:   what a line FILE+OFFSET is in the source: addr2line -Cfie FILE OFFSET";
  write_line(text);
}

// The call that found it.
FOLIO_NOINLINE void write_caller(Text& text) {
  Frames frames;
  take_frames(frames);
  text << "folio:   called by thread " << uint64_t{os::thread_id()} << ":";
  write_line(text);
  write_frames(text, frames);
}

// ---- Faults ----

// How far an address is from the object.
struct Distance {
  enum Where { kInside, kBehind, kBefore } where;
  size_t bytes;
};
Distance distance_to(const char* address, const GuardPlace& place) {
  if (address < place.base) return {Distance::kBefore, static_cast<size_t>(place.base - address)};
  const auto offset = static_cast<size_t>(address - place.base);
  if (offset < place.size) return {Distance::kInside, offset};
  return {Distance::kBehind, offset - place.size};
}

Text& put_distance(Text& text, Distance distance) {
  if (distance.where == Distance::kInside) return text << "byte " << uint64_t{distance.bytes} << " of ";
  return text << uint64_t{distance.bytes} << (distance.bytes == 1 ? " byte " : " bytes ")
              << (distance.where == Distance::kBehind ? "behind the end of " : "before the start of ");
}

// Of the objects on both sides of a guard: a live one, or else the nearer one. Null if there was none yet.
GuardPlace beside_guard(const char* address, size_t page_bytes) {
  const GuardPlace left = guard_place(address - page_bytes), right = guard_place(address + page_bytes);
  if (left.slot == nullptr || right.slot == nullptr) return left.slot == nullptr ? right : left;
  if (left.live() != right.live()) return left.live() ? left : right;
  return distance_to(address, left).bytes <= distance_to(address, right).bytes ? left : right;
}

// The object that a faulting access was meant for; null if the fault is not Folio's. It is not where the page's object
// is live: then the program itself has made the page inaccessible.
GuardPlace meant_by(const char* address) {
  const GuardPool* const pool = guard_pool.load(order::relaxed);  // relaxed: as in guard_park, by who set the handler
  if (pool == nullptr || address < pool->chunk || address >= pool->chunk + kClusterBytes) return {};
  const auto page = static_cast<size_t>(address - pool->chunk) / pool->page_bytes;
  if (page % 2 == 0) return beside_guard(address, pool->page_bytes);
  const GuardPlace place = guard_place(address);
  return place.live() ? GuardPlace{} : place;
}

void write_fault(const os::Fault& fault, const GuardPlace& place) {
  constexpr const char* kNames[] = {"access", "read", "write"};
  const Distance distance = distance_to(fault.address, place);
  Text text = misuse_line(kNames[static_cast<unsigned>(fault.access)], fault.address);
  if (!place.live()) {
    text << "use after free: ";
  } else {
    text << (distance.where == Distance::kBefore ? "underflow: " : "overflow: ");
  }
  put_object(put_distance(text, distance), place);
  if (!write_misuse(text, kAnchor)) return;
  text << "folio:   accessed by thread " << uint64_t{os::thread_id()} << ":";
  write_line(text);
  Frames frames;
  frames_from(fault.registers, frames);
  write_frames(text, frames, true);
  write_calls(text, place);
}

// Waits until other threads have written their reports: the process may end as soon as this one goes on.
void wait_for_others() {
  constexpr unsigned kTries = 200;
  for (unsigned i = 0; i < kTries; ++i) {
    const uint32_t others = reporting.load(order::relaxed);  // relaxed: nothing hangs on it but how long this waits
    if (others == 0) return;
    os::wait(reporting, others, 10);
  }
}

}  // namespace

void learn_program_path() { program[os::program_path(program, kPathMost)] = '\0'; }

void guards_after_fork() {
  guard_countdown = {};                // else all children would choose the same
  reporting.store(0, order::relaxed);  // relaxed: the child has one thread
}

void report_guard_fault(const os::Fault& fault) {
  const GuardPlace place = meant_by(fault.address);
  if (place.slot == nullptr) return;
  reporting.fetch_add(1, order::relaxed);  // relaxed: as above
  if (!place.slot->reported.swap(true)) write_fault(fault, place);
  reporting.fetch_sub(1, order::relaxed);  // relaxed: as above
  wait_for_others();
}

// ---- Calls ----

void report_guarded(const void* object, const GuardPlace& place, const char* function) {
  Text text = misuse_line(function, object);
  const bool was = place.slot != nullptr;
  const bool freed = was && !place.live() && place.base == object;
  if (!was) {
    text << "not the start of an object: beside guarded objects";
  } else if (freed) {
    put_object(text << "double free of ", place);
  } else {
    put_object(
        put_distance(text << "not the start of an object: ", distance_to(static_cast<const char*>(object), place)),
        place);
  }
  if (!write_misuse(text, freed ? "double-free" : "invalid-free")) return;
  write_caller(text);
  if (was) write_calls(text, place);
  end_misuse();
}

void report_guard_overwritten(const void* at, const GuardPlace& place, const char* function) {
  const Distance distance = distance_to(static_cast<const char*>(at), place);
  Text text = misuse_line(function, place.base);
  text << (distance.where == Distance::kBefore ? "underflow" : "overflow") << ": written since it was allocated, ";
  put_object(put_distance(text, distance), place);
  if (!write_misuse(text, kAnchor)) return;
  write_calls(text, place);
  end_misuse();
}

}  // namespace folio
