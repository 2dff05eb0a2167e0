// Carves fields out of spans of address space, and takes a run of granules in one of them.
#include "space/large_fields.h"

#include "os/os.h"
#include "space/chunk_table.h"
#include "space/large_runs.h"
#include "space/metadata.h"
#include "space/region.h"
#include "sync/relaxed.h"

namespace folio {

constinit Fields process_fields{};

namespace {

// ---- Address space ----

// Fields are carved from spans, so that few mappings hold many fields. A span's word: | first chunk not carved : 32 |
// end : 32 | in chunk numbers, equal when used up. A span is a quarter of all fields so far, so that little of a limit
// on address space is reserved for nothing.
constexpr size_t kSpanBytesMost = size_t{1} << 30;

uint64_t pack(uint64_t next, uint64_t end) { return next << 32 | end; }
char* chunk_at(uint64_t number) { return reinterpret_cast<char*>(number << kChunkShift); }

void give_back_span(uint64_t rest) {
  const uint64_t next = rest >> 32, end = rest & 0xffffffffu;
  if (next != end) os::unreserve(chunk_at(next), (end - next) << kChunkShift);
}

// Takes so many bytes from the span, or from a new one. Null if there is no address space.
char* carve(Fields& fields, size_t bytes) {
  const uint64_t chunks = bytes >> kChunkShift;
  // Relaxed throughout: the word holds numbers only, and what they number is address space.
  uint64_t now = fields.span.load(order::relaxed);
  for (;;) {
    const uint64_t next = now >> 32, end = now & 0xffffffffu;
    if (end - next >= chunks) {
      // relaxed: see above
      if (fields.span.compare_exchange(now, pack(next + chunks, end), order::relaxed)) return chunk_at(next);
      continue;
    }
    size_t more = fields.count.get() / 4 * modest(kFieldBytesMost);
    more = more < bytes ? bytes : more > kSpanBytesMost ? kSpanBytesMost : more;
    void* start = reserve_apart(more, kClusterBytes, more);
    if (start == nullptr && more > bytes) start = reserve_apart(more = bytes, kClusterBytes, bytes);
    if (start == nullptr) return nullptr;
    const uint64_t first = reinterpret_cast<uintptr_t>(start) >> kChunkShift;
    // Installed less what this call is for. The loser of a race gives its span back and tries again.
    // relaxed: see above. unseen: without that, address space would be lost
    if (fields.span.compare_exchange(now, pack(first + chunks, first + (more >> kChunkShift)), order::relaxed)) {
      give_back_span(now);
      return chunk_at(first);
    }
    os::unreserve(start, more);
  }
}

void uncarve(Fields& fields, char* base, size_t bytes) {
  const uint64_t first = reinterpret_cast<uintptr_t>(base) >> kChunkShift, end = first + (bytes >> kChunkShift);
  uint64_t now = fields.span.load(order::relaxed);  // relaxed: numbers only, as in carve
  while (now >> 32 == end && (now & 0xffffffffu) != end) {
    if (fields.span.compare_exchange(now, pack(first, now & 0xffffffffu), order::relaxed)) return;  // relaxed: as above
  }
  os::unreserve(base, bytes);
}

// ---- Making ----

void publish(Fields& fields, Field* field) {
  // [fields] acquire: pairs with the store below. unseen: who publishes has committed that metadata too, as a rule
  Field* last = fields.last.load(order::acquire);
  Field* none = nullptr;
  // [fields] release: publishes the header; pairs with the loads of `first` and `next`.
  if (last == nullptr && !fields.first.compare_exchange(none, field, order::release)) last = first_field(fields);
  for (Field* next = nullptr; last != nullptr; last = next_field(*last), next = nullptr) {
    if (last->next.compare_exchange(next, field, order::release)) break;  // [fields] release: as above
  }
  // [fields] release: its header; pairs with the load above. unseen: as there
  fields.last.store(field, order::release);
}

// A field in this address space, entered but not published yet. Null if there is no memory to describe it.
Field* make_field(Fields& fields, char* base, size_t bytes) {
  // It lies in two windows at most. Both first: what is entered stays so.
  static_assert(kFieldBytesMost <= size_t{kWindowChunks} * kChunkBytes);
  if (!chunk_table_open(base, bytes) || !index_prepare(fields.index)) return nullptr;
  if (window_make(base) == nullptr || window_make(base + bytes - 1) == nullptr) return nullptr;
  const auto count = static_cast<uint32_t>(bytes >> kGranuleShift);
  auto* field = static_cast<Field*>(metadata_alloc(Field::bytes_for(count)));
  if (field == nullptr) return nullptr;
  field->base = base;
  field->home = &fields;
  field->granules = count;
  field->seal = Field::seal_for(base, count);
  if (!index_enter(fields.index, *field)) return nullptr;
  for (char* chunk = base; chunk != base + bytes; chunk += kChunkBytes) {
    set_chunk(window_of(chunk), chunk, field, kCodeLarge);
  }
  return field;
}

// The first fields are committed word by word, as they are used. A later one is committed whole before any of it is
// touched: so its mapping merges with the field's before, and it takes one call in place of 64.
void commit_if_many(Field& f) {
  constexpr uint32_t kMany = 8;
  if (f.home->count.add(1) >= kMany) commit(f, 0, f.granules);
}

// A new field whose first `granules` are taken already. Where address space or metadata is short, little at a time: the
// program's own mappings need some too.
Field* open_field(Fields& fields, unsigned granules) {
  const size_t least = round_up(size_t{granules} << kGranuleShift, kClusterBytes);
  // Four such objects leave little at a small field's end.
  size_t most = modest(kFieldBytesMost), four = round_up(size_t{granules} << kGranuleShift << 2, kClusterBytes);
  if (most < four) most = four < kFieldBytesMost ? four : kFieldBytesMost;
  for (size_t bytes = most;; bytes = bytes / 8 < least ? least : round_up(bytes / 8, kClusterBytes)) {
    if (char* const base = carve(fields, bytes)) {
      if (Field* field = make_field(fields, base, bytes)) {
        set(*field, 0, granules);
        commit_if_many(*field);
        publish(fields, field);
        raise_room(*field, Room::kFree, field->granules);
        return field;
      }
      uncarve(fields, base, bytes);
    }
    if (bytes == least) return nullptr;
  }
}

// ---- Taking ----

// A free run of this length surely has room for `count` granules at a multiple of `step`.
unsigned sure_of(unsigned count, unsigned step) { return count + step - granules_a_page(); }

// Takes a run of this field; false if it seems to have none.
bool take_in(Field& f, Room r, unsigned count, unsigned step, unsigned* from) {
  constexpr unsigned kTries = 64;  // then another field: others take here all the time
  for (unsigned i = 0; i < kTries; ++i) {
    if (room_of(f, r) < count) return false;
    const bool found = r == Room::kReady ? find_ready_run(f, count, step, from) : find_run(f, count, step, from);
    if (found) {
      if (set(f, *from, count)) return true;
    } else if (!learn_room(f, r, sure_of(count, step))) {
      return false;
    }
  }
  return false;
}

constexpr unsigned kChecksMost = 32;  // fields searched in vain: each lowered its hint, so the next call gets further
constexpr unsigned kGuesses = 4;      // fields whose run may not have room at a multiple of `step`

Field* take_among(Fields& fields, Room r, unsigned least, unsigned count, unsigned step, unsigned checks,
                  unsigned* from) {
  FieldPlace at{&fields.index};
  for (unsigned i = 0; i < checks; ++i) {
    Field* f = find_room(r, least, &at);
    if (f == nullptr) return nullptr;
    if (take_in(*f, r, count, step, from)) return f;
  }
  return nullptr;
}

// Searches some fields, other ones each time, that have a run of `count`, but perhaps none at a multiple of `step`.
Field* guess_run(Fields& fields, Room r, unsigned count, unsigned step, unsigned* from) {
  FieldPlace at{&fields.index};
  // [fields] acquire: pairs with the store below. unseen: it takes fields that are nearly full
  if (const Field* f = fields.next_guess.load(order::acquire)) at = {f->block, f->number};
  Field* f = nullptr;
  for (unsigned i = 0; i < kGuesses; ++i) {
    f = find_room(r, count, &at);
    if (f == nullptr) break;
    if (take_in(*f, r, count, step, from)) break;
    if (i + 1 == kGuesses) {
      // [fields] release: its header was read here. unseen: as above
      fields.next_guess.store(f, order::release);
      return nullptr;
    }
  }
  fields.next_guess.store(f, order::release);  // [fields] release: as above. unseen: as above
  return f;
}

Field* take_of(Fields& fields, Room r, unsigned count, unsigned step, unsigned* from) {
  const unsigned sure = sure_of(count, step);
  if (r == Room::kReady && sure > kRunMost) return nullptr;
  Field* f = take_among(fields, r, sure, count, step, kChecksMost, from);
  return f != nullptr || sure == count ? f : guess_run(fields, r, count, step, from);
}

// A thread that stops for ever between lowering a hint and its second look, or between a change and raising it, hides
// free runs. So each search that found nothing raises all hints of one field, the next one each time, and searches that
// field before it opens a new one.
Field* repair_field(Fields& fields) {
  // [fields] acquire: pairs with the store below. unseen: it takes a third search in vain, in a field just opened
  Field* f = fields.next_to_repair.load(order::acquire);
  if (f == nullptr) f = first_field(fields);
  if (f == nullptr) return nullptr;
  fields.next_to_repair.store(next_field(*f), order::release);  // [fields] release: as it was read. unseen: as above
  raise_all(*f);
  return f;
}

}  // namespace

Field* take_warm_run(Fields& fields, unsigned count, unsigned step, unsigned* from) {
  FieldPlace at{&fields.index};
  for (unsigned i = 0; i < kGuesses; ++i) {
    Field* const f = find_marked(Mark::kDirty, &at);
    if (f == nullptr) break;
    const bool warm = find_run(*f, count, step, from) && 2 * count_resident_in(*f, *from, count) >= count;
    if (warm && set(*f, *from, count)) return f;
  }
  return nullptr;
}

// Runs whose pages are there come first, wherever they are. Of each kind the lowest field.
Field* take_run(Fields& fields, unsigned count, unsigned step, bool may_open, unsigned* from) {
  if (Field* f = take_of(fields, Room::kReady, count, step, from)) return f;
  if (Field* f = take_of(fields, Room::kFree, count, step, from)) return f;
  if (Field* f = repair_field(fields); f != nullptr && take_in(*f, Room::kFree, count, step, from)) return f;
  *from = 0;
  if (may_open) {
    if (Field* f = open_field(fields, count)) return f;
  }
  return take_among(fields, Room::kFree, count, count, step, ~0u, from);
}

Field* take_committed_run(Fields& fields, unsigned count, unsigned step, unsigned* from) {
  for (Field* f = first_field(fields); f != nullptr; f = next_field(*f)) {
    const uint64_t words = f->committed.load(order::acquire);  // [commit] acquire: as in commit
    if (find_run(*f, count, step, from, words) && set(*f, *from, count)) return f;
  }
  return nullptr;
}

bool commit(Field& f, unsigned from, unsigned count) {
  const unsigned first = from / 64, words = (from + count - 1) / 64 - first + 1;
  const uint64_t wanted = low_mask(words) << first;
  // [commit] acquire: after the kernel has made them writable; pairs with the fetch_or below.
  const uint64_t missing = wanted & ~f.committed.load(order::acquire);
  if (missing == 0) return true;
  // What is committed already may hold objects whose pages the program has protected. (Two threads that want one word
  // at the same moment both commit it.)
  constexpr size_t kWordBytes = 64 * kGranuleBytes;
  bool good = true;
  visit_runs(missing, 64, [&](unsigned at, unsigned length, uint64_t mask) {
    good = good && os::commit(f.base + at * kWordBytes, length * kWordBytes);
    if (good) f.committed.fetch_or(mask, order::release);  // [commit] release: who sees the bits may use the granules
  });
  return good;
}

}  // namespace folio
