// Bins: the backing store. Objects are taken from and given back to folios, each of which is one occupancy word.
//
//   take   choose clear bits of the fullest folio with room, lowest address among equals; fetch_or them. The bits that
//          were clear before are the caller's. (Linearization point: the fetch_or.)
//   give   fetch_and the bits away. (Linearization point: the fetch_and.) A bit that was clear already is a double
//          free.
//   open   a new chunk, when no folio has room.
//
// No locks, no lists; nothing waits. Called by the caches when they run dry or over, and directly for what is not
// cached.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "folio/descriptor.h"
#include "folio/hints.h"

namespace folio {

struct alignas(64) Bin {
  Atomic<HintBlock*> blocks;  // one for each window that has chunks of the bin, newest first; never removed
  Atomic<unsigned> chunks;    // that were opened
  // Whose turn it is to have its hints mended; null: the first one's.
  Atomic<HintBlock*> mend_block;
  Atomic<unsigned> mend_slot;
  Atomic<bool> refused;       // the kernel has refused to purge something of it
  Atomic<unsigned> watched;   // frees that were watched so far
  Atomic<Descriptor*> young;  // the chunk that was advised to have a huge page last
};
extern Bin bins[kBins];

// Calls visit(descriptor) for each open chunk of the bin until it returns false.
template <class Visit>
void visit_chunks(BinId bin, Visit&& visit) {
  // [blocks] acquire: pairs with block_for.
  for (HintBlock* block = bins[index(bin)].blocks.load(order::acquire); block != nullptr; block = block->next) {
    for (unsigned w = 0; w < kWindowChunks / 64; ++w) {
      // Relaxed: an index; chunk_in sees what is there.
      for (uint64_t rest = block->opened[w].load(order::relaxed); rest != 0; rest &= rest - 1) {
        Descriptor* const d = chunk_in(*block, w * 64 + lowest_bit(rest));
        if (d != nullptr && !visit(*d)) return;
      }
    }
  }
}

// The next of a bin's chunks from a place on, which moves behind it; null behind the last one, *block too.
Descriptor* next_chunk(HintBlock** block, unsigned* slot);

// Takes up to `want` (1 to 64) objects, in ascending order where they come from one folio. Returns how many; 0 only
// when there is no memory. *zero, where given, says whether the first one's pages are known to read as zero.
unsigned take_objects(BinId bin, void** objects, unsigned want, bool* zero = nullptr);

// The same as take_objects without opening a chunk.
unsigned take_objects_in_open_chunks(BinId bin, void** objects, unsigned want, bool* zero = nullptr);

// Gives up to kFolioObjects objects back, all of `bin`; those of one folio by one instruction. Misuse is reported as of
// `function`.
void give_objects(BinId bin, void* const* objects, unsigned count, const char* function);

// The same for one.
void give_object(BinId bin, void* object, const char* function);

// The object that holds an address of a bin's chunk.
struct Place {
  Descriptor* descriptor;  // null: the address is in no object
  unsigned object;
  char* base;      // where the object starts
  char* slot_end;  // where its slot ends
  bool damaged;    // there is a descriptor, but it was overwritten
  bool taken() const {
    Word& word = descriptor->occupancy(object / kFolioObjects);
    return (word.load(order::relaxed) >> object % kFolioObjects & 1) != 0;  // relaxed: a question, not a claim
  }
};
Place place_of(const void* address);

// Sets the bits `mask` of a folio; returns the word before. Clears them. Every change of an occupancy word goes through
// these two, which raise the folio's hint where they changed its class to another one with room.
uint64_t set_bits(Descriptor& d, unsigned folio, uint64_t mask);
struct Cleared {
  uint64_t bits;  // those that were set
  uint64_t left;  // those still set
};
Cleared clear_bits(Descriptor& d, unsigned folio, uint64_t mask);

// Tells of one object that give_objects found wrong, and for others that want the same words.
void report_double_free(const char* function, const void* object, BinId bin);
void report_not_start(const char* function, const void* address, const Place& place, BinId bin);

// Validity check for tests, with nothing in flight: true if every invariant of descriptor.h and hints.h holds.
bool check_bin(BinId bin);

}  // namespace folio
