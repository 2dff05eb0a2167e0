// Retire: a chunk without a taken object leaves its bin.
//
// Where address space is short, other bins can have it then; and once all of a cluster is vacant, that is unmapped for
// large and huge objects, or the program's own mappings. Otherwise an empty chunk costs nothing, as its pages are
// purged.
//
// Where more than half of `dirty_floor` of bins' pages is free, another bin that needs a chunk, and uses others up,
// inherits it, with its pages as they are: that costs no page fault. (Four threads that fill and free 60 MiB each, of
// sizes up to 250 and up to 2000 bytes by turns: 0.86 of the time in 0.90 of the memory.) So it does with a chunk that
// large objects have left, and gives up one of its own for either. (Phases of ten sizes: 0.88 of the time in 0.71 of
// the memory.)
//
//   claim   marks the chunk's commit word busy, so that nobody commits in it any more; then takes all objects. Both for
//           good: a thread that still has the descriptor finds no room in it.
//   leave   purges the pages; clears the entries in the descriptor map and the chunk table.
//   keep    pushes the descriptor to a list of its hint block.
//   return  makes the chunk vacant, or its field's again; what a bin gave up for another chunk waits for the
//           next that is opened. (Of a chunk that is inherited the pages stay, as their marks move to the new
//           descriptor, and nothing is returned.)
//
// A retired descriptor waits for a chunk of the same bin at the same place. So a thread that still has it is never led
// to another place; and a program that fills its address space with one size and another by turns needs no new
// descriptors each time (it starved after 210 turns). A thread that stops for ever in between keeps the chunk from
// everybody, nothing else.
#pragma once

#include <stddef.h>

#include "store/descriptor.h"
#include "store/hints.h"
#include "store/store.h"

namespace folio {

// The descriptor that was retired at this place, or null. All its objects are still taken, and no page is resident.
Descriptor* take_retired(HintBlock& block, const char* chunk);

// Commits a new chunk for a descriptor that was retired; all of it, since a thread that checked the commit before the
// retirement may take objects now. False if the kernel refuses: the descriptor waits again.
bool renew(Descriptor& d);

// A chunk that has left its bin or field, and what it has of pages. They count no more until settle_in.
struct Inherited {
  char* chunk = nullptr;
  uint64_t resident[kPageWords] = {};
  uint16_t committed = 0;  // as Descriptor::committed
  Backing backing = Backing::kSmall;
  uint8_t forks_before = 0;
};

// Whether more than half of `dirty_floor` is free, of bins' pages or of large objects', and there was no search in vain
// just now.
bool may_inherit(Store& store);
// For the bin: takes a chunk of another one of which nothing is taken and at least half is resident, in few rows; or
// one that large objects have left, half of it resident. Its `chunk` is null if none is found among the next few.
Inherited inherit_chunk(Store& store, BinId bin);
// For a bin that inherits: retires a free chunk of its own without a resident page, if one of the next few is, as
// the one that it takes may be missed. Returns whether one was. (Without it bins that inherit from each other by turns,
// and are purged in between, open new ones for ever: 2,800 after 4,000 turns of three threads, in place of 12.)
bool give_up_chunk(Store& store, BinId bin);
// Before the chunk is published: notes what its new descriptor has of pages.
void settle_in(Descriptor& d, const Inherited& from);

// Retires every chunk of the store that can be retired, and unmaps vacant clusters if it is to. Returns how many chunks
// became vacant or were unmapped. Any thread; visits every chunk.
size_t retire_free_chunks(Store& store, bool unmap = true);

}  // namespace folio
