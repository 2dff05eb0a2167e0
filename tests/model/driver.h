// The random driver: decides by a stream of bytes what to allocate, resize and free, and holds the answers against a
// shadow model that knows every live object: where it is, how large, how aligned, and what it contains.
//
// Checked at each step: no two objects overlap; the address is aligned; all usable bytes can be written, and keep what
// was written until the object is freed; zeroed memory is zero; resizing keeps contents; refused sizes set errno and
// change nothing; freeing keeps errno; questions about any address of an object are answered rightly.
//
// One driver is one thread's. Objects pass between drivers by give_away() and adopt(). A driver stops at its first
// failure; it uses no test framework, so that a fuzzer can run it too.
#pragma once

#include <errno.h>
#include <folio/folio.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace folio_test {

// Where decisions come from.
class Source {
 public:
  Source() = default;
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  virtual uint32_t word() = 0;
  uint32_t below(size_t n) { return static_cast<uint32_t>(word() % n); }
  bool one_in(uint32_t n) { return below(n) == 0; }
};

class RandomSource : public Source {
 public:
  explicit RandomSource(uint64_t seed) : engine_(seed) {}
  uint32_t word() override { return static_cast<uint32_t>(engine_() >> 32); }

 private:
  std::mt19937_64 engine_;
};

// Two bytes a decision, so that small changes of the input are small changes of what is done; zeroes when they are used
// up.
class BytesSource : public Source {
 public:
  BytesSource(const uint8_t* bytes, size_t count) : at_(bytes), end_(bytes + count) {}
  bool more() const { return at_ != end_; }
  uint32_t word() override {
    uint32_t value = 0;
    for (unsigned i = 0; i < 2 && at_ != end_; ++i) value = value << 8 | *at_++;
    return value;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

// A live object. What it holds is written from `seed`: all of it up to kWholeMost, of larger ones a word a page.
struct Object {
  char* base = nullptr;
  size_t size = 0;       // as asked for
  size_t written = 0;    // bytes from base that hold the pattern: all that were usable
  size_t alignment = 1;  // as asked for
  uint64_t seed = 0;
};

class Driver {
 public:
  struct Limits {
    size_t live_most = size_t{128} << 20;
    size_t huge_most = size_t{64} << 20;
    bool whole_process = true;  // no other thread allocates, so that statistics can be checked
  };

  Driver(Source& source, uint64_t first_seed, const Limits& limits)
      : source_(source), limits_(limits), next_seed_(first_seed) {}
  ~Driver() { free_all(); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  bool ok() const { return failure_.empty(); }
  const std::string& failure() const { return failure_; }
  size_t live_bytes() const { return live_bytes_; }
  size_t count() const { return objects_.size(); }

  // One operation, chosen by the source.
  void step() {
    ++steps_;
    const uint32_t what = source_.below(100);
    if (what < 30) {
      allocate();
    } else if (what < 36) {
      allocate_zeroed();
    } else if (what < 42) {
      allocate_aligned();
    } else if (what < 58) {
      resize();
    } else if (what < 90) {
      free_one();
    } else if (what < 94) {
      ask();
    } else if (what < 96) {
      expand();
    } else if (what < 98) {
      refuse();
    } else if (source_.one_in(20)) {
      folio_collect();
    } else if (source_.one_in(20)) {
      free_some();
    }
  }

  // Hands an object to another driver; its base is null if there is none.
  Object give_away() {
    if (objects_.empty()) return {};
    const Object object = pick();
    forget(object);
    return object;
  }
  void adopt(const Object& object) {
    if (object.base == nullptr || !check_contents(object, "adopted")) return;
    remember(object);
  }

  // Questions about a random address in a random object.
  void ask() {
    int on_stack = 0;
    if (folio_is_ours(&on_stack) || folio_usable_size(nullptr) != 0) return fail("the stack is no object", {});
    if (objects_.empty()) return;
    const Object object = pick();
    const char* const inside = object.base + source_.word() % object.written;
    folio_place place;
    if (!folio_is_ours(inside) || !folio_locate(inside, &place)) return fail("is not found", object);
    if (place.base != object.base || place.usable_size != object.written) return fail("is found wrong", object);
    if (!place.taken) return fail("is said to be free", object);
    if (limits_.whole_process && source_.one_in(50)) {
      folio_stats stats = {};
      stats.struct_size = sizeof stats;
      if (!folio_stats_get(&stats) || stats.live < live_bytes_) return fail("is not counted", object);
    }
  }

  void free_all() {
    while (ok() && !objects_.empty()) release(objects_.begin()->second.object);
  }

 private:
  struct Entry {
    Object object;
    size_t place;  // in order_
  };
  static constexpr size_t kWholeMost = size_t{32} << 10;
  static constexpr size_t kStride = 4096;

  // ---- What to do it with ----

  size_t any_size() {
    switch (source_.below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return source_.below(65);
      case 4:
      case 5:
      case 6:
        return source_.below(1025);
      case 7:
      case 8:
        return edge_of_a_bin(source_.below(1025));
      case 9:
        return edge_of_a_bin(source_.below(40000));
      case 10:
        return near((1 + source_.below(8)) * kStride);
      case 11:
        return source_.below(20000);
      case 12:
        return source_.one_in(4) ? edge_of_a_bin(source_.word() % (size_t{1} << 20)) : source_.below(6000);
      case 13:
        return source_.one_in(4) ? source_.below(1u << 16) * size_t{20} : source_.below(200);
      case 14:
        return source_.one_in(16) ? near((1 + source_.below(10)) << 20) : source_.below(3000);
      default:
        return source_.one_in(256) ? source_.below(1u << 16) * limits_.huge_most >> 16 : source_.below(500);
    }
  }
  size_t near(size_t size) { return size - 1 + source_.below(3); }
  // The usable size that such a request has, or a byte beside it.
  size_t edge_of_a_bin(size_t size) { return near(folio_good_size(size + 1)); }

  const Object& pick() { return objects_.at(order_[source_.below(order_.size())]).object; }

  // ---- The model ----

  void fail(const std::string& what, const Object& object) {
    if (!ok()) return;
    failure_ = "step " + std::to_string(steps_) + ": " + what + ": object of " + std::to_string(object.size) +
               " bytes (" + std::to_string(object.written) + " usable, alignment " + std::to_string(object.alignment) +
               ") at " + std::to_string(reinterpret_cast<uintptr_t>(object.base));
  }

  static uint64_t pattern(uint64_t seed, size_t at) { return (seed + at) * 0x9e3779b97f4a7c15u; }
  // Calls visit(offset, length) for each piece of the object that holds the pattern.
  template <class Visit>
  static bool for_pieces(size_t bytes, Visit&& visit) {
    if (bytes == 0) return true;
    const size_t step = bytes <= kWholeMost ? 8 : kStride;
    for (size_t at = 0; at < bytes; at += step) {
      if (!visit(at, std::min<size_t>(8, bytes - at))) return false;
    }
    return visit(bytes - 1, 1);
  }
  static void write(const Object& object) {
    for_pieces(object.written, [&](size_t at, size_t length) {
      const uint64_t word = pattern(object.seed, at);
      memcpy(object.base + at, &word, length);
      return true;
    });
  }
  // Whether the first `bytes` are as the object was written.
  static bool intact(const Object& object, const char* base, size_t bytes) {
    const auto same = [&](size_t at, size_t length) {
      const uint64_t word = pattern(object.seed, at);
      return memcmp(base + at, &word, length) == 0;
    };
    // Its last byte was written over the last word; compare what lies wholly before both.
    const size_t whole = std::min(bytes, object.written - 1) / 8 * 8;
    const size_t step = object.written <= kWholeMost ? 8 : kStride;
    for (size_t at = 0; at + 8 <= whole; at += step) {
      if (!same(at, 8)) return false;
    }
    return bytes < object.written || same(object.written - 1, 1);
  }
  bool check_contents(const Object& object, const char* what) {
    if (intact(object, object.base, object.written)) return true;
    fail(std::string(what) + ": its contents have changed", object);
    return false;
  }
  static bool all_zero(const char* at, size_t bytes) {
    return bytes == 0 || (at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0);
  }

  void remember(const Object& object) {
    const auto start = reinterpret_cast<uintptr_t>(object.base);
    const auto next = objects_.lower_bound(start);
    if (next != objects_.end() && start + object.written > next->first)
      return fail("overlaps the one above it", object);
    if (next != objects_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.object.written > start) return fail("overlaps the one below it", object);
    }
    objects_.emplace_hint(next, start, Entry{object, order_.size()});
    order_.push_back(start);
    live_bytes_ += object.written;
  }
  void forget(const Object& object) {
    const auto at = objects_.find(reinterpret_cast<uintptr_t>(object.base));
    const size_t place = at->second.place;
    order_[place] = order_.back();
    objects_.at(order_[place]).place = place;
    order_.pop_back();
    objects_.erase(at);
    live_bytes_ -= object.written;
  }

  // A new object: checks what was promised, then writes to all of it.
  void add(void* base, size_t size, size_t alignment, bool zeroed) {
    Object object{static_cast<char*>(base), size, 0, alignment, next_seed_ += uint64_t{1} << 32};
    if (base == nullptr) return fail("no memory", object);
    object.written = folio_usable_size(base);
    const size_t least = size < 16 ? 8 : 16;
    if (object.written < size || object.written == 0) return fail("too small", object);
    if (reinterpret_cast<uintptr_t>(base) % std::max(alignment, least) != 0) return fail("misaligned", object);
    if (zeroed && !all_zero(object.base, size)) return fail("not zero", object);
    remember(object);
    if (ok()) write(object);
  }

  void release(const Object object) {
    if (!check_contents(object, "freed")) return;
    forget(object);
    errno = 4711;
    switch (source_.below(4)) {
      case 0:
        folio_free_sized(object.base, object.alignment == 1 ? object.size : object.written);
        break;
      case 1:
        folio_free_aligned_sized(object.base, object.alignment, object.size);
        break;
      default:
        folio_free(object.base);
    }
    if (errno != 4711) fail("freeing it changed errno", object);
  }

  bool has_room_for(size_t size) const { return live_bytes_ + size <= limits_.live_most; }

  // ---- Operations ----

  void allocate() {
    const size_t size = any_size();
    if (!has_room_for(size)) return free_some();
    // An object resized or freed soon, and a flock of the same size, are what programs do.
    const uint32_t n = source_.one_in(20) ? 1 + source_.below(size < 1000 ? 100 : 5) : 1;
    for (uint32_t i = 0; ok() && i < n && has_room_for(size); ++i) add(folio_malloc(size), size, 1, false);
  }

  void allocate_zeroed() {
    const size_t size = any_size();
    if (!has_room_for(size)) return free_some();
    const size_t count = 1 + source_.below(4);
    if (source_.one_in(2)) return add(folio_zalloc(size), size, 1, true);
    add(folio_calloc(count, size / count), count * (size / count), 1, true);
  }

  size_t any_alignment() { return size_t{1} << (source_.one_in(16) ? source_.below(23) : source_.below(14)); }

  void allocate_aligned() {
    const size_t size = any_size(), alignment = any_alignment();
    if (!has_room_for(size)) return free_some();
    void* base = nullptr;
    switch (source_.below(3)) {
      case 0:
        return add(folio_aligned_alloc(alignment, size), size, alignment, false);
      case 1:
        return add(folio_aligned_zalloc(alignment, size), size, alignment, true);
      default:
        if (folio_posix_memalign(&base, std::max<size_t>(alignment, 8), size) != 0) base = nullptr;
        return add(base, size, std::max<size_t>(alignment, 8), false);
    }
  }

  // A resized object must hold what it held, up to `kept` bytes; then all of it is written anew.
  void resized(const Object& before, void* base, size_t size, size_t alignment, size_t kept) {
    Object object{static_cast<char*>(base), size, 0, alignment, before.seed};
    if (base == nullptr) return fail("no memory to resize", before);
    object.written = folio_usable_size(base);
    if (object.written < size) return fail("too small after resizing", object);
    if (reinterpret_cast<uintptr_t>(base) % alignment != 0) return fail("misaligned after resizing", object);
    if (!intact(before, object.base, kept)) return fail("its contents were lost by resizing", before);
    forget(before);
    remember(object);
    if (ok()) write(object);
  }

  void resize() {
    if (objects_.empty()) return allocate();
    const Object before = pick();
    const size_t size = source_.one_in(3) ? near(before.size + 1 + source_.below(1 + before.size / 2)) : any_size();
    if (!has_room_for(size)) return free_some();
    if (size == 0 || !check_contents(before, "resized")) return;
    const size_t kept = std::min(before.written, size);
    switch (source_.below(4)) {
      case 0: {
        const size_t alignment = source_.one_in(2) ? before.alignment : any_alignment();
        return resized(before, folio_aligned_realloc(before.base, alignment, size), size, alignment, kept);
      }
      case 1: {
        auto* const base = static_cast<char*>(folio_rezalloc(before.base, before.size, size));
        if (base != nullptr && size > before.size && !all_zero(base + before.size, size - before.size)) {
          return fail("not zero beyond its old size", before);
        }
        return resized(before, base, size, 1, std::min(before.size, size));
      }
      case 2:
        return resized(before, folio_reallocarray(before.base, size, 1), size, 1, kept);
      default:
        return resized(before, folio_realloc(before.base, size), size, 1, kept);
    }
  }

  void free_one() {
    if (!objects_.empty()) release(pick());
  }
  void free_some() {
    for (size_t n = objects_.size() / 2; ok() && n != 0; --n) release(pick());
  }

  void expand() {
    if (objects_.empty()) return;
    Object object = pick();
    const size_t size = object.written + source_.below(2 + object.written);
    if (!has_room_for(size)) return;
    const bool grew = folio_expand(object.base, size);
    const size_t usable = folio_usable_size(object.base);
    if (usable < (grew ? size : object.written)) return fail("too small after expanding", object);
    if (!check_contents(object, "expanded")) return;
    if (usable == object.written) return;
    forget(object);
    object.written = usable;
    remember(object);
    if (ok()) write(object);
  }

  void refuse() {
    constexpr size_t kRefused[] = {SIZE_MAX,         SIZE_MAX - 1, SIZE_MAX - 4096,
                                   SIZE_MAX / 2 + 1, SIZE_MAX / 2, size_t{1} << 48};
    const size_t size = kRefused[source_.below(std::size(kRefused))] - source_.below(100);
    Object object;
    if (!objects_.empty()) object = pick();
    errno = 0;
    void* got = nullptr;
    switch (source_.below(5)) {
      case 0:
        got = folio_malloc(size);
        break;
      case 1:
        got = folio_calloc(size / 2, 3);
        break;
      case 2:
        got = folio_aligned_alloc(any_alignment(), size);
        break;
      case 3:
        got = folio_reallocarray(object.base, size / 2, 3);
        break;
      default:
        got = folio_realloc(object.base, size);
    }
    if (got != nullptr || errno != ENOMEM) return fail("a size that no one has was not refused", object);
    if (object.base != nullptr) check_contents(object, "refused");
  }

  Source& source_;
  const Limits limits_;
  uint64_t next_seed_;
  uint64_t steps_ = 0;
  std::map<uintptr_t, Entry> objects_;  // by address
  std::vector<uintptr_t> order_;        // for a random one
  size_t live_bytes_ = 0;
  std::string failure_;
};

}  // namespace folio_test
