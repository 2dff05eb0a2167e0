// The chunk table: two bytes for each 256 KiB of address space, which say what lies there: a bin, large objects, a huge
// object, or nothing of Folio's. `free` needs this one load. The table is address space; a program touches a page of it
// for each 512 MiB of heap. It is readable only, so that it costs nothing, but for the steps in which there are
// entries.
//
// An entry is the code times the size of a pointer: the offset of the bin's cursor among a thread's cursors.
//
// It covers 16 TiB, as address space may be limited: addresses 16 TiB apart share an entry. Of two windows (below) that
// would share entries Folio has one only: window_make refuses the second. The entry of a foreign address may be that of
// an object 16 TiB away (beside a heap of 100 GiB, for one in 160). Then the fast path of its free does not notice;
// what looks at the magazine's objects one by one does, by the descriptor map, which is exact. The two shifts in place
// of one cost 0.3 ns a malloc and free in turns; a table of all addresses would take 1 GiB, with entries of a byte half
// of that and 0.4 ns.
//
// Beside it, for slow paths, the descriptor map: from a chunk's number to its descriptor, two levels.
//
// Who may touch it: whoever opens a chunk or a huge object writes its entries before any of its addresses are handed
// out; everybody reads. A bin's entry changes from watched to ordinary (store/watch.h), and when the chunk leaves its
// bin (store/retire.h), as nobody has an object of it then.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "arch/arch.h"
#include "base/atomic.h"
#include "config/size_classes.h"

namespace folio {

inline constexpr unsigned kTableBits = 44;  // of an address
inline constexpr size_t kChunkTableEntries = size_t{1} << (kTableBits - kChunkShift);
inline constexpr unsigned kCodeNone = 0;

// In the program image's zero-filled part: its address is a constant, and it needs no start-up.
// Plain numbers, so that no compiler evaluates 2^26 constructors; read and written through chunk_entry.
extern uint16_t chunk_table[kChunkTableEntries] asm("folio_chunk_table");

// What becomes writable at once: the entries of 8 GiB.
inline constexpr size_t kTableStepBytes = size_t{64} << 10;

// Before entries of [start, start + bytes) are written for the first time. False if the kernel refuses.
bool chunk_table_open(const void* start, size_t bytes);

// Makes steps without an entry readable only, where the loader has not done so. Before main, and only while there is
// one thread: a step that another thread opens meanwhile could be closed again.
void chunk_table_close();

FOLIO_INLINE Atomic<uint16_t>& chunk_entry(const void* address) {
  constexpr unsigned kAbove = 64 - kTableBits;
  const uint64_t number = reinterpret_cast<uintptr_t>(address);
  return reinterpret_cast<Atomic<uint16_t>&>(chunk_table[number << kAbove >> (kAbove + kChunkShift)]);
}

// Of any address, but for one that is not Folio's the answer may be that of an address 16 TiB away. Relaxed: whoever
// has an object's address got it after the entry was written.
FOLIO_INLINE unsigned cursor_offset_at(const void* address) { return chunk_entry(address).load(order::relaxed); }
FOLIO_INLINE unsigned chunk_code_unchecked(const void* address) { return cursor_offset_at(address) / kCursorBytes; }

// For an address of a window, and for any address; of a watched chunk its bin.
inline unsigned chunk_code_inside(const void* address) {
  const unsigned code = chunk_code_unchecked(address);
  return code < kCodeWatched ? code : code - kCodeWatched;
}
inline unsigned chunk_code(const void* address);
// For an address that has a code.
inline bool is_watched(const void* address) { return chunk_code_unchecked(address) >= kCodeWatched; }

inline char* chunk_start(const void* address) {
  return reinterpret_cast<char*>(round_down(reinterpret_cast<uintptr_t>(address), kChunkBytes));
}

// A window is what one leaf of the descriptor map covers: 4096 chunks, 1 GiB.
inline constexpr unsigned kWindowShift = 12;
inline constexpr unsigned kWindowChunks = 1u << kWindowShift;

struct Window {
  uint64_t number;  // its first chunk's number >> kWindowShift
  Atomic<void*> descriptor[kWindowChunks];
  Atomic<uint8_t> cluster[kWindowChunks / kClusterChunks];  // ClusterState (chunks.h)
  Atomic<uint64_t> vacant[kWindowChunks / 64];              // bit for each chunk: it waits for a bin (chunks.cc)

  char* chunk(unsigned i) const { return reinterpret_cast<char*>(((number << kWindowShift) + i) << kChunkShift); }
};

inline constexpr unsigned kWindows = kChunkTableEntries >> kWindowShift;
extern Atomic<Window*> windows[kWindows];

inline uint64_t window_number(const void* address) {
  return reinterpret_cast<uintptr_t>(address) >> (kChunkShift + kWindowShift);
}

// The window of this number, or that holds the address, or null. window_make creates it where there is none, and
// returns null if there is no memory, or its place is another window's.
inline Window* window_at(uint64_t number) {
  // [window] acquire: sees its number; pairs with window_make
  Window* const window = windows[number % kWindows].load(order::acquire);
  return window != nullptr && window->number == number ? window : nullptr;
}
inline Window* window_of(const void* address) { return window_at(window_number(address)); }
Window* window_make(const void* address);

// Whether no window of the range would have another one's place.
bool windows_have_room(const void* start, size_t bytes);

inline unsigned window_slot(const void* address) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(address) >> kChunkShift) % kWindowChunks;
}

inline unsigned chunk_code(const void* address) {
  // Else it is the entry of an address 16 TiB away.
  return window_of(address) == nullptr ? kCodeNone : chunk_code_inside(address);
}

// The descriptor of the chunk that holds the address, or null: of an address of the window, and of any address.
inline void* descriptor_inside(const Window* window, const void* address) {
  return window->descriptor[window_slot(address)].load(order::acquire);  // [descriptor] acquire: pairs with set_chunk
}
inline void* descriptor_at(const void* address) {
  const Window* const window = window_of(address);
  return window == nullptr ? nullptr : descriptor_inside(window, address);
}

// Writes the entries of one chunk, whose step of the table is open: the descriptor first, then the code.
inline void set_chunk(Window* window, const void* chunk, void* descriptor, unsigned code) {
  // [descriptor] release: publishes the descriptor's contents; pairs with descriptor_at.
  window->descriptor[window_slot(chunk)].store(descriptor, order::release);
  // Relaxed: who has an address got it after this; who has none may find the code and no descriptor yet.
  chunk_entry(chunk).store(static_cast<uint16_t>(code * kCursorBytes), order::relaxed);
}

}  // namespace folio
