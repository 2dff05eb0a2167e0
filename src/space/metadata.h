// The metadata region: everything Folio remembers lies here, apart from the program's memory. Allocated by a lock-free
// bump, zero-filled, never given back and never unmapped, so a stale pointer to metadata can always be read.
#pragma once

#include <stddef.h>

#include "base/atomic.h"
#include "sync/relaxed.h"

namespace folio {

inline constexpr size_t kMetadataAlignment = 64;

// The header at the start of an address range of the region; what was handed out follows it. The list of all pieces,
// newest first, also serves readers outside the process.
struct MetadataPiece {
  Atomic<size_t> used;  // bytes from the start on
  size_t bytes;
  MetadataPiece* previous;
  Atomic<size_t> committed;  // bytes from the start on that can be used; what follows is address space only
};
extern Atomic<MetadataPiece*> metadata_pieces;

// Zero-filled bytes at a multiple of `alignment` (a power of two from kMetadataAlignment to a page). Null if there is
// no memory.
void* metadata_alloc(size_t bytes, size_t alignment = kMetadataAlignment);

// Whether the kernel refused to commit some of it the last time, as it does where what is writable is limited.
bool metadata_charge_is_refused();
// Whether the last metadata_alloc was null, for that reason or for want of address space.
bool metadata_is_refused();

// For metadata that its user can do without: after a refusal the next kDoWithout calls are not to ask for it, as each
// would make two system calls or more. (Frees of a thread that had no magazines took 450 to 2100 ns, now 10; of one
// that had no cache 2000 to 2500, now 260 to 330.)
class MetadataSeldom {
 public:
  static constexpr unsigned kDoWithout = 256;
  constexpr MetadataSeldom() : left_(0) {}
  bool waits() {
    const unsigned left = left_.get();
    if (left != 0) left_.set(left - 1);
    return left != 0;
  }
  // Null if there is no memory.
  void* alloc(size_t bytes, size_t alignment = kMetadataAlignment) {
    void* const at = metadata_alloc(bytes, alignment);
    if (at == nullptr) left_.set(kDoWithout);
    return at;
  }

 private:
  Hint<unsigned> left_;
};

// Adds zero-filled memory, which is metadata from now on.
void metadata_add(void* memory, size_t bytes);

// Whether a range lies in metadata that was handed out, and so can be read.
bool metadata_holds(const void* address, size_t bytes);

// Bytes handed out so far.
size_t metadata_bytes();

}  // namespace folio
