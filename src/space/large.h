// Large objects: more than the largest bin serves, up to 8 MiB. They lie in fields, 64 MiB of address space each, in
// runs of granules of 16 KiB; so what is freed in one size serves another, together with its free neighbours, and its
// pages need not be touched anew.
//
//   take     choose a run of clear bits; set them word by word in ascending order; one that was set meanwhile: take all
//            back and choose again. Commit its words. Write the entry.
//   park     take the entry's live bit away: whoever does is the one who frees. A cache may keep the object then.
//   give     take the entry away; clear the bits.
//   purge    as take, but what is free and resident; madvise; clear resident; clear the bits.
//
// Of several threads that take overlapping runs, the one furthest up meets nobody above it, so one succeeds. A thread
// that stops in between keeps these granules from the others, nothing else.
//
// Which run: where the thread gave its last object, where large_near.h says so. Else the lowest one whose pages are all
// resident, in the first field that has such a run. Else, in the first field that has any run, about the one with the
// fewest pages to touch anew; of equal ones the shortest, then the lowest. The object starts at a cache line of its
// first 4 KiB that is a hash of the address, so that large objects do not gather in the same cache sets [SuperMalloc
// §5].
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "space/field.h"
#include "space/large_near.h"

namespace folio {

// `size` bytes (at most kLargeMost) at a multiple of `alignment` (a power of two, at most a cluster). Null if there is
// no memory. `zeroed`: all of it reads as zero. Without `may_open` no field is opened for it, and the size has no
// bound. `near`: the thread's, if the object may lie where it gave the last one.
void* large_alloc(Fields& fields, size_t size, size_t alignment, bool zeroed, bool may_open = true,
                  LargeNear* near = nullptr);

// The most that an object of `size` bytes (at most kLargeMost) has wherever it starts.
size_t large_good_size(size_t size);

// The live object that starts at `address`, or the one that holds it, or that ends nearest before it.
struct LargePlace {
  Field* field;  // null: the address is in no field, or its descriptor was overwritten
  unsigned granule;
  char* base;     // of the object; null if there is none before the address
  size_t usable;  // bytes from base on
  char* end;      // of its granules
  bool starts(const void* address) const { return base != nullptr && base == address; }
  bool holds(const void* address) const { return lies_in(address, base + usable); }
  bool holds_or_keeps_spare(const void* address) const { return lies_in(address, end); }

 private:
  bool lies_in(const void* address, const char* before) const {
    const auto* at = static_cast<const char*>(address);
    return base != nullptr && at >= base && at < before;
  }
};
LargePlace large_place(const void* address);

// Frees a live object but for its granules, which the caller owns now, for large_unpark or large_give. Returns how many
// granules there are; 0 if no live object starts there. *seen: whether the object had the mark of large_mark_seen. An
// object of up to `plain_most` granules is parked without an atomic instruction: of two frees at the same moment, which
// is misuse, both may park it; then the second large_unpark or large_give fails, most often. A large_resize at the same
// moment, misuse too, may be undone.
unsigned large_park(void* object, bool* seen = nullptr, unsigned plain_most = 0);
// Sets or clears the mark of a live object whose free is recorded (core/seam.h). Returns whether it was set.
bool large_mark_seen(void* object, bool seen);
// How many granules an object of `size` bytes takes. A parked object of as many can serve as one with an alignment of
// at most kGranuleBytes: large_unpark returns where it starts then.
unsigned large_granules(size_t size, size_t alignment = 1);
void* large_unpark(void* parked, size_t size, size_t alignment, bool zeroed);  // null if it is not parked, or too small
bool large_give(void* parked, LargeNear* near = nullptr);                      // false if it is not parked
void large_give_parked(Fields& fields);  // all parked objects, in the child of a fork

// Parks an object and gives it. False if no live object starts there.
inline bool large_free(void* object) { return large_park(object) != 0 && large_give(object); }

// Makes the object at least `size` bytes (at most kLargeMost) without moving it, and gives back the granules that it
// then does not need. False if the granules behind it are taken, or if no live object starts there.
bool large_resize(void* object, size_t size);

// Purges granules that are free: all, or those that were free at the last large_age(). Returns bytes. The fewer bytes a
// call may purge, the fewer fields without any it visits; the next call goes on.
size_t large_purge(Fields& fields, bool all, size_t most_bytes);
void large_age(Fields& fields);

// Where address space is short, a field of the process's lends a chunk to a bin. Zero-filled once it is committed; null
// if there is none.
char* lend_chunk();
// The same for a chunk that is committed, and half of whose granules or more are resident: those of its words here, as
// far as the field knows. They stay as they are, and count no more.
char* lend_resident_chunk(uint64_t* resident);
// Takes a chunk back that has no live object, no resident page, and no bin's entry any more. False if it was not lent.
bool take_back_chunk(char* chunk);

// For statistics: counted by a walk.
struct LargeStats {
  uint64_t objects, taken, parked, resident, dirty, reserved;  // bytes but for the first; parked ones are not in taken
};
LargeStats large_stats(const Fields& fields);

// Validity check, with nothing in flight. Only tests link it, as all of the *check.cc.
bool large_check(const Fields& fields);

}  // namespace folio
