// Notes what a thread took and gave last of large objects, and takes there.
#include "space/large_near.h"

#include "space/large_runs.h"

namespace folio {

void near_note_taken(LargeNear& near, const char* start, bool placed) {
  uintptr_t& taken = near.taken[near.hand++ % LargeNear::kTaken];
  if ((taken & LargeNear::kPlaced) != 0) near.pause = LargeNear::kPause;
  taken = reinterpret_cast<uintptr_t>(start) | (placed ? LargeNear::kPlaced : 0);
}

void near_note_given(LargeNear& near, Field& f, unsigned from, unsigned count) {
  const auto start = reinterpret_cast<uintptr_t>(granule_at(f, from));
  const unsigned end = from + count;
  bool lately = false;
  for (uintptr_t& taken : near.taken) {
    if ((taken & ~LargeNear::kPlaced) != start) continue;
    lately = true;
    taken = 0;
  }
  if (!lately) return;
  if (near.field == &f && near.end == from) {
    near.end = end;
  } else if (near.field == &f && near.from == end) {
    near.from = from;
  } else {
    near.field = &f;
    near.from = from;
    near.end = end;
  }
}

Field* near_take(LargeNear& near, unsigned count, unsigned step, unsigned* from) {
  Field* const f = near.field;
  const unsigned first = near.from, end = near.end;
  near.field = nullptr;
  if (near.pause != 0) {
    --near.pause;
    return nullptr;
  }
  if (f == nullptr || end > f->granules || first >= end || first % step != 0) return nullptr;
  const unsigned free = end - first;
  if (count > free || count < free >> LargeNear::kPartShift) return nullptr;
  if (count_resident_in(*f, first, count) != count || !set(*f, first, count)) return nullptr;
  if (count < free) {
    near.from = first + count;
    near.end = end;
    near.field = f;
  }
  *from = first;
  return f;
}

}  // namespace folio
