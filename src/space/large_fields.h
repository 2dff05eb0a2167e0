// The fields: where a run is taken, and how another field comes to be. For large.cc.
#pragma once

#include "space/field.h"
#include "space/fields.h"

namespace folio {

// Takes `count` granules at a multiple of `step` in one of the fields, or, with `may_open`, in a new one. Null if there
// is no such run.
Field* take_run(Fields& fields, unsigned count, unsigned step, bool may_open, unsigned* from);

// The same where half of the pages or more are there. In the first fields with free ones.
Field* take_warm_run(Fields& fields, unsigned count, unsigned step, unsigned* from);

// The same among granules that are committed already: for when the kernel refuses to commit more.
Field* take_committed_run(Fields& fields, unsigned count, unsigned step, unsigned* from);

// Makes granules usable that the caller has taken, or is about to. False if the kernel refuses.
bool commit(Field& f, unsigned from, unsigned count);

}  // namespace folio
