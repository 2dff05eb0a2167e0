// Fields: all that large objects (large.h) which are taken from together share. Functions get it. Zero-filled it is
// valid and empty. An allocation names it; a call for a live object need not, as the object's field leads to it.
//
// The process has one (process_fields), which malloc and free use. Tests have others, and heaps to come may. All share
// address space, metadata, the chunk table and the counts of pages; chunks are lent (large.h) by the process's alone.
//
// Who may touch it: everybody, under the protocols of large_fields.cc and large_index.h.
#pragma once

#include <stdint.h>

#include "base/atomic.h"
#include "space/field.h"
#include "space/large_index.h"
#include "sync/relaxed.h"

namespace folio {

struct Fields {
  FieldBlock index;
  alignas(64) Atomic<Field*> first;  // of a list in the order in which they were made
  Atomic<Field*> last;               // a hint: near the end of the list
  Counter<uint32_t> count;           // made so far
  Counter<uint32_t> age;             // counted by large_age()
  Atomic<uint64_t> span;             // from which fields are carved
  // Apart from what each free reads.
  alignas(64) Atomic<Field*> next_guess;
  Atomic<Field*> next_to_repair;
};

// [fields] acquire: pairs with publish
inline Field* first_field(const Fields& fields) { return fields.first.load(order::acquire); }

}  // namespace folio
