// What the long stress tests share: objects that carry their contents, mailboxes between threads, and the questions
// that are asked when all is quiet.
#pragma once

#include <folio/folio.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "config/options.h"
#include "diag/stats.h"
#include "space/large.h"
#include "space/pages.h"
#include "store/bin.h"
#include "store/check.h"

namespace stress {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitized = true;
#else
inline constexpr bool kAddressSanitized = false;
#endif

// A short decay, and the housekeeper. Before main, so that no thread reads an option while it is written.
inline bool configure(int64_t dirty_floor) {
  folio::options.decay = 20;
  folio::options.dirty_floor = dirty_floor;
  folio::options.housekeeper = folio::kHousekeeperOn;
  return true;
}

// How long a test runs: `seconds`, half of it under a sanitizer, FOLIO_STRESS times as long where that is set.
class Deadline {
 public:
  explicit Deadline(double seconds) {
    const char* factor = getenv("FOLIO_STRESS");
    seconds *= factor != nullptr ? atof(factor) : kSanitized ? 0.5 : 1;
    end_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }
  // Not before enough was done: a busy machine gets two minutes more for it.
  bool over(bool enough = true) const {
    return std::chrono::steady_clock::now() >= (enough ? end_ : end_ + std::chrono::minutes(2));
  }

 private:
  std::chrono::steady_clock::time_point end_;
};

// An object of the program: filled when allocated, looked at when freed.
struct Object {
  unsigned char* at = nullptr;
  size_t size = 0;
  uint8_t tag = 0;

  void fill() const {
    each([](unsigned char& byte, uint8_t value) { byte = value; });
  }
  bool intact() const {
    bool same = true;
    each([&](unsigned char& byte, uint8_t value) { same = same && byte == value; });
    return same;
  }

 private:
  // All bytes of a small object; of a larger one both ends, and a byte of each page.
  template <class Visit>
  void each(Visit&& visit) const {
    constexpr size_t kEnd = 256, kPage = 4096;
    for (size_t i = 0; i < size && i < kEnd; ++i) visit(at[i], value(i));
    for (size_t i = kEnd; i < size; i += i + kEnd >= size ? 1 : kPage) visit(at[i], value(i));
    if (size > 2 * kEnd) {
      for (size_t i = size - kEnd; i < size; ++i) visit(at[i], value(i));
    }
  }
  uint8_t value(size_t i) const { return static_cast<uint8_t>(tag + i * 13 + i / 256); }
};

inline std::atomic<uint64_t> failures{0};

inline void fail(const char* what, const Object& object) {
  if (failures.fetch_add(1) < 10)
    ADD_FAILURE() << what << ": " << object.size << " bytes at " << static_cast<void*>(object.at);
}

// Where one thread leaves an object and another takes it. Not lock-free: a slot that is busy is passed by.
class Mailboxes {
 public:
  explicit Mailboxes(unsigned count) : slots_(count) {}
  // Puts `object` into a slot and returns what was there; the object itself if the slot is busy.
  Object swap(unsigned i, const Object& object) {
    Slot& slot = slots_[i % slots_.size()];
    if (slot.busy.test_and_set(std::memory_order_acquire)) return object;
    const Object before = slot.object;
    slot.object = object;
    slot.busy.clear(std::memory_order_release);
    return before;
  }
  unsigned count() const { return static_cast<unsigned>(slots_.size()); }

 private:
  struct Slot {
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    Object object;
  };
  std::vector<Slot> slots_;
};

// One thread's dealings.
class Worker {
 public:
  Worker(unsigned seed, Mailboxes& mailboxes, size_t largest = 200000)
      : random_(seed), mailboxes_(mailboxes), largest_(largest), kept_(64) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    for (const Object& object : kept_) release(object);
  }

  unsigned chance(unsigned n) { return static_cast<unsigned>(random_() % n); }

  void step() {
    Object& kept = kept_[chance(64)];
    const unsigned kind = chance(100);
    if (kind < 50) {
      release(kept);
      kept = allocate(size());
    } else if (kind < 90) {
      kept = mailboxes_.swap(chance(1u << 20), kept.at != nullptr ? kept : allocate(size()));
    } else if (kind < 94) {
      resize(kept, size());
    } else if (kind < 99) {
      burst();
    } else {
      release(kept);
      kept = chance(4) == 0 ? allocate((size_t{1} << 20) + random_() % (size_t{9} << 20)) : allocate(size());
    }
  }

  Object allocate(size_t bytes) {
    Object object;
    object.size = bytes;
    object.tag = static_cast<uint8_t>(random_());
    const unsigned kind = chance(16);
    if (kind == 0) {
      object.at = static_cast<unsigned char*>(folio_calloc(1, bytes));
      for (size_t i = 0; object.at != nullptr && i < bytes; i += i < 512 ? 1 : 509) {
        if (object.at[i] != 0) return fail("calloc that is not zero", object), Object();
      }
    } else if (kind == 1) {
      const size_t alignment = size_t{1} << (4 + chance(10));
      object.at = static_cast<unsigned char*>(folio_aligned_alloc(alignment, bytes));
      if (reinterpret_cast<uintptr_t>(object.at) % alignment != 0) fail("an object that is not aligned", object);
    } else {
      object.at = static_cast<unsigned char*>(folio_malloc(bytes));
    }
    if (object.at == nullptr) return fail("no memory", object), Object();
    object.fill();
    return object;
  }

  static void release(const Object& object) {
    if (object.at == nullptr) return;
    if (!object.intact()) fail("an object whose contents changed", object);
    folio_free(object.at);
  }

  size_t size() {
    const unsigned kind = chance(64);
    return 1 + (kind < 50 ? random_() % 512 : kind < 61 ? random_() % 16384 : random_() % largest_);
  }

 private:
  void resize(Object& object, size_t bytes) {
    if (object.at == nullptr) return;
    if (!object.intact()) fail("an object whose contents changed", object);
    const Object before = object;
    object.at = static_cast<unsigned char*>(folio_realloc(object.at, bytes));
    object.size = std::min(before.size, bytes);
    // realloc keeps the first bytes; the pattern of a longer object has more of them.
    for (size_t i = 0; i < std::min<size_t>(object.size, 256); ++i) {
      if (object.at[i] != static_cast<uint8_t>(before.tag + i * 13 + i / 256))
        return fail("realloc lost the contents", object);
    }
    object.size = bytes;
    object.fill();
  }

  // More of one size than magazines hold, and all back.
  void burst() {
    const size_t bytes = 1 + random_() % 256;
    Object objects[200];
    const unsigned count = 20 + chance(180);
    for (unsigned i = 0; i < count; ++i) objects[i] = allocate(bytes);
    for (unsigned i = 0; i < count; ++i) release(objects[i]);
  }

  std::minstd_rand random_;
  Mailboxes& mailboxes_;
  size_t largest_;
  std::vector<Object> kept_;
};

inline uint64_t purges() { return folio::page_counts.purge_calls.get(); }

inline void empty(Mailboxes& mailboxes) {
  for (unsigned i = 0; i < mailboxes.count(); ++i) Worker::release(mailboxes.swap(i, Object()));
}

// No thread allocates, but the housekeeper may be about: what must hold is asked again until it does, for a minute.
template <class Question>
std::string eventually(Question&& question) {
  std::string answer;
  for (unsigned i = 0; i < 6000; ++i) {
    answer = question();
    if (answer.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return answer;
}

inline std::string bins_are_sound() {
  for (unsigned i = 1; i < folio::kBins; ++i) {
    if (!folio::check_bin(folio::process_store, folio::bin_id(i))) return "check_bin: bin " + std::to_string(i);
  }
  return folio::large_check(folio::process_fields) ? "" : "large_check";
}

// Everything was freed and the other threads have ended: nothing may be taken, or the allocator lost it.
inline std::string nothing_is_taken() {
  folio_collect();
  for (unsigned i = 1; i < folio::kBins; ++i) {
    const uint64_t taken = folio::bin_stats(folio::bin_id(i)).taken;
    if (taken != 0) return "bin " + std::to_string(i) + ": " + std::to_string(taken) + " objects are lost";
  }
  if (folio::large_stats(folio::process_fields).taken != 0) return "large objects are lost";
  const folio::Totals totals = folio::totals();
  return totals.huge_live == 0 ? "" : "huge objects are lost";
}

inline void expect_quiet_and_sound() {
  EXPECT_EQ(eventually(bins_are_sound), "");
  EXPECT_EQ(eventually(nothing_is_taken), "");
  EXPECT_EQ(eventually(bins_are_sound), "");
  EXPECT_EQ(failures.load(), 0u);
}

}  // namespace stress
