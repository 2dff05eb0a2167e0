// Where a thread takes its next large object, if it can: where it gave the last one. What lies there is still in its
// core's cache; the lowest free run, which an object gets else, was often another core's, whose lines have to come from
// there. (Threads that take buffers of 20 KB to 1.1 MB in turns, write and free them: 0.53 to 0.93 of the time. By
// granule, 24 of 100 had last been another thread's, and 0.1 are.)
//
// Nothing is kept back: others may take it, and a purge may. So that objects stay together all the same, this holds
// only for what the thread took as one of its last kTaken objects, as older ones have left the cache; and only where
// the next object fits, and uses a quarter or more. (With every object that it gave, random replacement took up to 1.08
// of the memory, and buffers of up to 8 MiB 1.23 of the time. Half in place of a quarter: 0.72 to 0.87 of the time;
// with any, one thread with 16 buffers took 1.16.)
//
// Who may touch it: the thread; also its signal handler in the middle of a call, so nothing in it is trusted.
#pragma once

#include <stdint.h>

#include "space/field.h"

namespace folio {

struct LargeNear {
  static constexpr unsigned kTaken = 4;
  static constexpr unsigned kPartShift = 2;  // an object is to use 1/2^this of what is free

  Field* field;               // null: nothing is known
  uint32_t from, end;         // neighbouring granules of it that the thread gave last
  const char* taken[kTaken];  // where the last objects start that it took
  uint8_t hand;               // the next of them
};

// After the thread took an object, or gave one.
void near_note_taken(LargeNear& near, const char* start);
void near_note_given(LargeNear& near, Field& f, unsigned from, unsigned count);

// Takes `count` granules of those, from a multiple of `step` on. Null, and nothing is known any more, if they are too
// many or too few, or not all free and resident.
Field* near_take(LargeNear& near, unsigned count, unsigned step, unsigned* from);

}  // namespace folio
