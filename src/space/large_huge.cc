// Advises the kernel of huge pages for chunks of fields, and takes the advice back.
#include "space/large_huge.h"

#include "config/options.h"
#include "os/os.h"
#include "space/huge_pace.h"
#include "space/large_fields.h"
#include "space/large_runs.h"
#include "space/room.h"

namespace folio {

namespace {

constexpr unsigned kChunkGranules = kChunkBytes >> kGranuleShift;
static_assert(kChunkGranules % 64 == 0 && kFieldBytesMost / kChunkBytes <= 32);

uint32_t bit_of(unsigned chunk) { return uint32_t{1} << chunk; }

// A process that holds less would notice what a chunk leaves over, and the 0.1 ms of the first, which is timed.
constexpr int64_t kLiveLeast = 4 * kChunkBytes;

bool may_be_huge(int64_t more) {
  const int64_t live =
      page_counts.resident.get() - page_counts.dirty.get() + more + static_cast<int64_t>(page_counts.huge_live.get());
  return live >= kLiveLeast && options.huge_pages != kHugePagesNever && !room_is_tight() &&
         has_room_for_large(kChunkBytes) && huge_pages_due();
}

// The caller has taken the whole chunk, of which nothing is resident. A chunk that is `fresh`, which the program never
// had, can be timed; one that it had may be registered with a userfaultfd, for which a touch waits.
bool ask(Field& f, unsigned chunk) {
  const unsigned first = chunk * kChunkGranules;
  // Relaxed: a guess; who commits it meanwhile has granules of it, and the caller has all.
  const bool fresh = (f.committed.load(order::relaxed) >> (first / 64) & low_mask(kChunkGranules / 64)) == 0;
  const bool trusted = trust_huge_pages();
  if ((!trusted && !fresh) || !commit(f, first, kChunkGranules)) return false;
  char* const start = granule_at(f, first);
  // Where small pages were, the kernel keeps their table, and gives no huge page, until all that it covers goes at once
  // (Linux 6.14).
  if (!fresh && !purge_pages(start, kChunkBytes, kChunkBytes)) return false;
  if (!os::prefer_huge_pages(start, kChunkBytes)) return false;
  // Relaxed: the granules are taken. (It may be set: a thread has vanished between this and the use of the chunk.)
  const bool was = (f.advised.fetch_or(bit_of(chunk), order::relaxed) & bit_of(chunk)) != 0;
  if (!was) note_foreseen(1);
  if (!trusted) time_huge_page(start);
  return true;
}

bool take(Field& f, unsigned from, unsigned end) { return from >= end || set(f, from, end - from); }
void leave(Field& f, unsigned from, unsigned end) {
  if (from < end) clear(f, from, end - from);
}
// They become resident with the rest of the chunk.
void leave_resident(Field& f, unsigned from, unsigned end) {
  if (from >= end) return;
  visit_words(from, end - from, [&](unsigned w, uint64_t mask, unsigned) {
    f.resident(w).fetch_or(mask, order::relaxed);  // relaxed: the granules are taken
    return true;
  });
  count_resident(bytes_in(end - from));
  count_dirty(bytes_in(end - from), true);
  clear(f, from, end - from);
}

// As large_prefer_huge, in one chunk.
void prefer_in(Field& f, unsigned chunk, unsigned from, unsigned end) {
  const unsigned first = chunk * kChunkGranules, last = first + kChunkGranules;
  const unsigned low = from > first ? from : first, high = end < last ? end : last;
  if (count_resident_in(f, first, kChunkGranules) != 0 || !take(f, first, low)) return;
  if (!take(f, high, last)) return leave(f, first, low);
  // Once more, now that nobody else can change it.
  if (count_resident_in(f, first, kChunkGranules) == 0 && may_foresee(1) && ask(f, chunk)) {
    leave_resident(f, first, low);
    leave_resident(f, high, last);
  } else {
    leave(f, first, low);
    leave(f, high, last);
  }
}

}  // namespace

void large_prefer_huge(Field& f, unsigned from, unsigned count) {
  if (!may_be_huge(bytes_in(count))) return;
  const unsigned end = from + count, most = f.granules / kChunkGranules;
  for (unsigned chunk = from / kChunkGranules; chunk < most && chunk * kChunkGranules < end; ++chunk) {
    prefer_in(f, chunk, from, end);
  }
}

void large_refuse_huge(Field& f, unsigned from, unsigned count) {
  const unsigned first = from / kChunkGranules, last = (from + count - 1) / kChunkGranules;
  const auto theirs = static_cast<uint32_t>(low_mask(last - first + 1) << first);
  // Relaxed, both: a bit is set while all granules of its chunk are taken; the caller has taken some since.
  if ((f.advised.load(order::relaxed) & theirs) == 0) return;
  const uint32_t mine = f.advised.fetch_and(~theirs, order::relaxed) & theirs;
  for (uint32_t rest = mine; rest != 0; rest &= rest - 1) {
    os::refuse_huge_pages(granule_at(f, lowest_bit(rest) * kChunkGranules), kChunkBytes);
    note_foreseen(-1);
  }
}

}  // namespace folio
