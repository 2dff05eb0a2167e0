// The fields: where a run is taken, and how another field comes to be. For large.cc.
#pragma once

#include "space/field.h"

namespace folio {

// Takes `count` granules at a multiple of `step`, of those that are there, or of a new field. Null if there is none.
Field* take_run(unsigned count, unsigned step, bool may_open, unsigned* from);

// Where the kernel gives no more: of what is committed already.
Field* take_committed_run(unsigned count, unsigned step, unsigned* from);

// Makes granules usable that the caller has taken, or is about to. False if the kernel refuses.
bool commit(Field& f, unsigned from, unsigned count);

}  // namespace folio
