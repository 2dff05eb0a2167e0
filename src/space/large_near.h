// Where a thread takes its next large object, if it can: where it gave the last one. What lies there is still in its
// core's cache; the lowest free run, which an object gets else, was often another core's, whose lines have to come from
// there. (Threads that take buffers of 20 KB to 1.1 MB in turns, write and free them: 0.6 to 0.9 of the time.)
//
// Nothing is kept back: others may take it, and a purge may. So that objects stay together all the same, this holds
//
// - only for what the thread took as one of its last kTaken objects, as older ones have left the cache. (2 and 8
//   do as well. With every object that it gave, random replacement took up to 1.08 of the memory, and buffers of up to
//   8 MiB 1.23 of the time.)
// - only where the next object fits, and uses a quarter or more. (Half: 0.72 to 0.88 of the time; with any, one thread
//   with 16 buffers took 1.16.)
// - only while objects that were placed so are given before the thread has taken kTaken others: after one that was not,
//   the next kPause ones lie elsewhere. (Without that, a program that took 8 MB, gave it, and kept a result of 2 MB, in
//   turns, had 2 to 2.5 times the memory: each result lay in the room of the next 8 MB.)
//
// In a process of one thread there is no such cache but its own, and nothing is noted (cache/cpu_cache.cc).
//
// Who may touch it: the thread; also its signal handler in the middle of a call, so nothing in it is trusted.
#pragma once

#include <stdint.h>

#include "space/field.h"

namespace folio {

struct LargeNear {
  static constexpr unsigned kTaken = 4;
  static constexpr unsigned kPartShift = 2;  // an object is to use 1/2^this of what is free, or more
  static constexpr uint16_t kPause = 1024;
  static constexpr uintptr_t kPlaced = 1;  // a mark of `taken`: near_take had placed it

  Field* field;             // null: nothing is known
  uint32_t from, end;       // neighbouring granules of it that the thread gave last
  uintptr_t taken[kTaken];  // where the last objects start that it took, and has not given; | kPlaced
  uint16_t pause;           // so many are not to be placed
  uint8_t hand;             // the next place in `taken`
};

// After the thread took an object, `placed` by near_take or not; and after it gave one.
void near_note_taken(LargeNear& near, const char* start, bool placed);
void near_note_given(LargeNear& near, Field& f, unsigned from, unsigned count);

// Takes `count` granules of those, from a multiple of `step` on. Null, and nothing is known any more, if they are too
// many or too few, or not all free and resident.
Field* near_take(LargeNear& near, unsigned count, unsigned step, unsigned* from);

}  // namespace folio
