// Huge objects: more than 8 MiB, or aligned to more than 2 MiB; realloc leaves them here down to 2 MiB. Each has a
// block of its own: a power-of-two number of clusters of address space, of which the part that the program may use is
// committed. A freed block keeps its pages and waits in a lock-free stack. There is one for each power of two and each
// eighth of it that may be resident, so that the next object gets a block with about the pages that it needs. (With
// stacks by powers of two alone, two threads that replace six objects of 4 to 30 MB take 1.57 of the time.)
// core/clock.cc purges waiting blocks by the same clock and bound as all else; one without pages is unmapped. A block
// has huge pages where the system's setting says so, its object has moved as it grew, or it is likely to be written
// (huge_foresee), unless huge_pages:never.
//
// A block whose alignment is more than a cluster's is unmapped when freed, as another such request is unlikely; and one
// that realloc moved on.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "space/chunk_table.h"

namespace folio {

inline constexpr unsigned kHugeOrders = arch::kAddressBits - kClusterShift + 1;

// Lies in the metadata region; the first kHugeEntered chunks of the block lead to it. Who may touch it: while the
// object lives, the program's calls on it (which the program orders); while it waits, whoever popped it.
struct HugeBlock {
  char* base;
  size_t reserved_bytes;   // of address space
  size_t usable_bytes;     // whole pages; what the program may use
  size_t touched_bytes;    // from base: what may be resident; beyond it everything reads as zero
  size_t committed_bytes;  // from base: what can be used; beyond it there is address space only
  Atomic<uint32_t> state;  // kHugeFree or kHugeLive
  uint32_t freed_at;       // what huge_age() counted to when it was freed
  bool unmap_when_freed;
  bool seen;          // a chosen object: its free is recorded (core/seam.h)
  bool advised;       // the kernel was asked for huge pages
  bool zeroed;        // the object, or the last one, was asked for as zeroes
  uint32_t foreseen;  // clusters that count for kForeseenMost, until their pages are given back
  Atomic<HugeBlock*> link;

  Atomic<HugeBlock*>& stack_link() { return link; }
};
static_assert(sizeof(HugeBlock) == 64);
// So many first chunks of a block get entries. (All of 2 TiB took 71 ms to enter, and 100 MiB for good.)
inline constexpr size_t kHugeEntered = kWindowChunks;
inline constexpr uint32_t kHugeFree = 0, kHugeLive = 1, kHugeGone = 2;

// `size` bytes at a multiple of `alignment` (a power of two). From the block's touched_bytes on they read as zero. Null
// if there is no memory.
HugeBlock* huge_alloc(size_t size, size_t alignment);

// Says of a new object whether the program asked for zeroes. If not, it will write what it reads, and the object gets
// huge pages if it has more than kLargeMost bytes, while such objects, and waiting blocks that had one, have at most
// kForeseenMost bytes: what a program of sparse ones can lose.
void huge_foresee(HugeBlock* block, bool zeroed);

// False if the block was free already.
bool huge_free(HugeBlock* block);

// Makes the object at least `size` bytes without moving its address. False if its block is too small.
bool huge_resize(HugeBlock* block, size_t size);

// Moves the object's pages to a larger block: no byte is copied where the kernel can move pages. Null, and nothing
// changed, if there is no memory. `leaves` is called with the old address once the contents have moved, and before the
// address can be anybody else's.
HugeBlock* huge_move(HugeBlock* block, size_t size, void (*leaves)(void* object) = nullptr);

// The block that holds an address, which lies in the block's first kHugeEntered chunks; else null.
inline HugeBlock* huge_at(const void* address) {
  const unsigned code = chunk_code(address);
  if (code != kCodeHugeStart && code != kCodeHugeInside) return nullptr;
  return static_cast<HugeBlock*>(descriptor_at(address));
}

// The block that holds an address without an entry, or null. Searches downward for the block's last entry: for messages
// and folio_locate.
HugeBlock* huge_beyond(const void* address);

// Purges pages of waiting blocks, those that have waited longest first: of all, or of those that were freed before the
// last huge_age(). A block whose last page goes is unmapped. Returns bytes, up to a cluster more than asked.
size_t huge_purge(bool all, size_t most_bytes);
void huge_age();

// Address space reserved for huge objects; bytes in live ones, and how many these are.
size_t huge_reserved_bytes();
size_t huge_live_bytes();
size_t huge_live_count();

}  // namespace folio
