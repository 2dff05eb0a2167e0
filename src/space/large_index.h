// The index of fields: tells a search for room, and a purge, which fields to visit. (A walk over all fields, 16 a GiB,
// took 50 us a free at 100 GiB.)
//
//   block (4096 fields, 256 GiB)    marks: a bit for each group     room[i]: of group i
//       group (64 fields, 4 GiB)    marks: a bit for each field     room[i]: of field i
//           field                   dirty: a bit for each word
//               word                occupancy, resident: the truth
//
//   room, kFree    no free run is longer
//   room, kReady   no free run whose pages are there is longer, as far as kRunMost
//   mark, kDirty   there may be granules that are free and resident
//   mark, kAged    some of these may have been so at the last large_age()
//
// Room and marks are hints: each may promise too much, but never too little, by the rule of store/hints.h:
//
//   raise   change the level below; then, level by level from below, raise the hint unless it is seen raised.
//   lower   lower the hint; then read the level below once more, and raise the hint again if that asks for it.
//
// A mark is raised where it is set, room where it is no less than the length of the run. All accesses that raise or
// lower, and the second look of a lowerer, are sequentially consistent ([room]), so of a raiser and a lowerer one sees
// the other. The first look of a search is not: it acquires the field with its hint. A search that finds a stale hint
// lowers it. A thread that stops for ever between the two steps may hide room or dirty pages of a field or a group; so
// each search that finds nothing repairs one field and its group, the next field each time (repair_field).
#pragma once

#include <stdint.h>

#include "base/atomic.h"
#include "config/size_classes.h"
#include "space/field.h"

namespace folio {

inline constexpr unsigned kGroupFields = 64, kBlockGroups = 64, kBlockFields = kGroupFields * kBlockGroups;
// Granules of the largest request, and as many as it may take to find it aligned.
inline constexpr unsigned kRunMost = 640;
static_assert(kRunMost >= ((kLargeMost + kLineOffsetMost) >> kGranuleShift) + 1 + (kClusterBytes >> kGranuleShift) - 1);

enum class Room : uint8_t { kFree, kReady };
enum class Mark : uint8_t { kDirty, kAged };

// The hints of 64 below: of the fields of a group, or of the groups of a block.
struct FieldHints {
  Atomic<uint64_t> marks[2];
  Atomic<uint16_t> room[2][64];

  Atomic<uint64_t>& mark(Mark m) { return marks[static_cast<unsigned>(m)]; }
  Atomic<uint16_t>& room_of(Room r, unsigned i) { return room[static_cast<unsigned>(r)][i]; }
};

struct FieldGroup {
  FieldHints hints;
  Atomic<Field*> field[kGroupFields];
};

struct FieldBlock {
  Atomic<FieldBlock*> next;
  Atomic<uint32_t> used;  // places that were handed out; never less
  FieldHints groups;
  FieldGroup group[kBlockGroups];
};

// Makes sure that there is room for some more fields in the index that begins with this block. False if there is no
// memory.
bool index_prepare(FieldBlock& first);
// Gives the field its place in the index; its room is raised afterwards. False if there is no memory, which
// index_prepare() makes unlikely.
bool index_enter(FieldBlock& first, Field& f);

unsigned room_of(Field& f, Room r);
void raise_room(Field& f, Room r, unsigned granules);
void lower_room(Field& f, Room r, unsigned granules);  // before the caller's second look
void raise_mark(Field& f, Mark m);
void lower_mark(Field& f, Mark m);  // before the caller's second look
// Raises every field's and group's aged mark where the dirty one is raised.
void age_marks(FieldBlock& first);

// Where a search goes on. It begins at an index's first block.
struct FieldPlace {
  FieldBlock* block;
  unsigned number = 0;
};
// The first field from `at` on that seems to have so much room, or is marked; null if there is none. Lowers stale hints
// that it finds.
Field* find_room(Room r, unsigned granules, FieldPlace* at);
Field* find_marked(Mark m, FieldPlace* at);

}  // namespace folio
