// Magazine: a block of 1 KiB, aligned to that, of pointers to free objects of one bin. Caches hold and pass on
// magazines: a full one carries up to 126 frees to another thread for an atomic instruction or two, without a touch of
// any object.
//
//   slot    0        top             bottom        126          127
//         | free ... | object ... object | null | ... | stack link | header |
//
// Objects fill it downward from the bottom slot, which holds null; bottom is 1 to 126 and is the capacity. The cursor
// of the thread that uses it (thread_cache.h) points to the top slot: full is a cursor whose low 10 bits are 0, empty a
// cursor to null. If bottom is 126, its null is the stack link, which is null outside of stacks.
//
//   header   | bundle length : 8 | bottom : 8 | next magazine >> 10 << 10, with the top's index below : 48 |
//
// `next` and the top's index are valid while the magazine waits (in a cache, a bundle or the depot); bottom always is.
// A bundle is magazines linked through `next` that move as one; the first one has the length.
//
// Who may touch it: its owner, a thread or a try-section; in the depot or the pool, the stack's protocol. It is never
// unmapped.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "arch/arch.h"
#include "base/atomic.h"
#include "config/size_classes.h"
#include "sync/tagged_stack.h"

namespace folio {

inline constexpr size_t kMagazineBytes = 1024;
inline constexpr unsigned kMagazineSlots = kMagazineBytes / sizeof(void*);
inline constexpr unsigned kMagazineShift = 10;

// The fast path reads a slot as a pointer to an object whatever lies in it, also the stack link: hence may_alias.
typedef void* __attribute__((may_alias)) Slot;

class Magazine {
 public:
  Slot* slot(unsigned i) { return reinterpret_cast<Slot*>(this) + i; }
  static Magazine* of(const Slot* top) {
    return reinterpret_cast<Magazine*>(reinterpret_cast<uintptr_t>(top) & ~(kMagazineBytes - 1));
  }

  void prefetch() const {
#pragma GCC unroll 16
    for (size_t line = 0; line < kMagazineBytes; line += 64) arch::prefetch(reinterpret_cast<const char*>(this) + line);
  }

  // Makes it empty with room for `capacity` objects (1 to 126); returns its top.
  Slot* format(unsigned capacity) {
    if (capacity == kMagazineObjects) {
      forget_stack_link();  // an atomic store: a pop that was overtaken may still read it
    } else {
      *slot(capacity) = nullptr;
    }
    set_header(uint64_t{capacity} << kBottomShift);
    return slot(capacity);
  }

  // Writes the top's index into the header, for a magazine that waits; the rest stays.
  void park(Slot* top) {
    set_header((header() & ~uint64_t{kMagazineBytes - 1}) |
               (reinterpret_cast<uintptr_t>(top) % kMagazineBytes / sizeof(void*)));
  }
  Slot* top() { return slot(static_cast<unsigned>(header() % kMagazineBytes)); }
  unsigned bottom() const { return static_cast<unsigned>(header() >> kBottomShift & 0xff); }
  unsigned count() const { return bottom() - static_cast<unsigned>(header() % kMagazineBytes); }

  // Of a magazine that waits: moves its objects so that its capacity is `capacity`, at least its count.
  void set_capacity(unsigned capacity);
  // Both magazines wait. take_from moves the `n` top objects of `from` into this one, which has room; give_to moves
  // this one's `n` top objects into `to`, which is empty and gets a capacity of n.
  void take_from(Magazine* from, unsigned n);
  void give_to(Magazine* to, unsigned n);

  Magazine* next() const { return reinterpret_cast<Magazine*>(header() & kNextMask); }
  void set_next(Magazine* next) { set_header((header() & ~kNextMask) | reinterpret_cast<uintptr_t>(next)); }
  unsigned bundle_length() const { return static_cast<unsigned>(header() >> kLengthShift); }
  void set_bundle_length(unsigned n) {
    set_header((header() & ~(uint64_t{0xff} << kLengthShift)) | uint64_t{n} << kLengthShift);
  }

  Atomic<Magazine*>& stack_link() { return stack_link_; }
  // relaxed: the owner's; the slot is null again, as a bottom must be
  void forget_stack_link() { stack_link_.store(nullptr, order::relaxed); }

 private:
  static constexpr unsigned kLengthShift = 56, kBottomShift = 48;
  static constexpr uint64_t kNextMask = ((uint64_t{1} << 48) - 1) & ~uint64_t{kMagazineBytes - 1};

  // Relaxed: the owner alone writes it, and it is published with the magazine.
  uint64_t header() const { return header_.load(order::relaxed); }
  void set_header(uint64_t word) { header_.store(word, order::relaxed); }

  [[maybe_unused]] void* objects_[kMagazineSlots - 2];
  Atomic<Magazine*> stack_link_;
  Atomic<uint64_t> header_;
};
static_assert(sizeof(Magazine) == kMagazineBytes);
static_assert(kMagazineObjects == kMagazineSlots - 2);

// Whether the object is in one of `count` slots from `from` on.
bool holds(const Slot* from, unsigned count, const void* object);

using MagazineStack = TaggedStack<Magazine, kMagazineShift>;

// The pool of empty magazines, which grows by a page at a time. They come and go in lists through `next`, of up to
// kEmptyBatch. Null if there is no memory.
inline constexpr unsigned kEmptyBatch = 8;
Magazine* magazines_get();
void magazines_put(Magazine* list);

// Drains a bundle (null: none): gives the objects back to their folios, the magazines to the pool. Returns how many
// magazines there were.
unsigned bundle_drain(BinId bin, Magazine* bundle, const char* function);

}  // namespace folio
