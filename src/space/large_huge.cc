// Advises the kernel of huge pages for clusters of fields, and takes it back. `cluster` is its number in the field.
#include "space/large_huge.h"

#include "config/options.h"
#include "os/os.h"
#include "space/huge_pace.h"
#include "space/large_fields.h"
#include "space/large_runs.h"
#include "space/room.h"

namespace folio {

namespace {

// After a huge page was broken up its place gets none before so many calls of large_age().
constexpr uint32_t kAges = 2;

constexpr unsigned kClusterGranules = kClusterBytes >> kGranuleShift;
static_assert(kClusterGranules % 64 == 0 && kFieldBytesMost / kClusterBytes <= 32);

uint32_t bit_of(unsigned cluster) { return uint32_t{1} << cluster; }

// A process that holds less would notice what a cluster leaves over.
constexpr int64_t kLiveLeast = 2 * kClusterBytes;

// For an object of so many bytes, which leaves over up to a cluster at either end; and one may be tried.
bool may_be_huge(int64_t bytes) {
  const int64_t live =
      page_counts.resident.get() - page_counts.dirty.get() + bytes + static_cast<int64_t>(page_counts.huge_live.get());
  return live >= kLiveLeast && foreseen_large.has_room(1) && options.huge_pages != kHugePagesNever &&
         options.decay != 0 && !room_is_tight() && has_room_for_large(static_cast<size_t>(bytes) + 3 * kClusterBytes) &&
         huge_pages_due();
}

bool nothing_there(Field& f, unsigned cluster) {
  return count_resident_in(f, cluster * kClusterGranules, kClusterGranules) == 0;
}

// The cluster is not foreseen any more, if nothing of it is there. The caller has taken a part of it, so nobody asks.
void forget(Field& f, unsigned cluster) {
  const uint32_t bit = bit_of(cluster);
  // Relaxed, both: as for `advised`. (Two that purge the rest at once may both see the other's: then the bit stays.)
  if ((f.foreseen.load(order::relaxed) & bit) == 0 || !nothing_there(f, cluster)) return;
  if ((f.foreseen.fetch_and(~bit, order::relaxed) & bit) != 0) foreseen_large.note(-1);
}

// The caller has taken the whole cluster, of which nothing is resident. What is timed is another page: this one may be
// registered with a userfaultfd, for which a touch waits.
bool ask(Field& f, unsigned cluster) {
  const uint32_t bit = bit_of(cluster);
  // Relaxed, all: the granules are taken.
  if ((f.foreseen.load(order::relaxed) & bit) == 0) {
    if (!foreseen_large.add()) return false;
    f.foreseen.fetch_or(bit, order::relaxed);
  }
  const unsigned first = cluster * kClusterGranules;
  char* const start = granule_at(f, first);
  // Where small pages were, the kernel keeps their table, and gives no huge page, until all that it covers goes at once
  // (Linux 6.14).
  const bool asked = (trust_huge_pages() || try_huge_page()) && commit(f, first, kClusterGranules) &&
                     purge_pages(start, kClusterBytes, kClusterBytes) && os::prefer_huge_pages(start, kClusterBytes);
  if (asked) f.advised.fetch_or(bit, order::relaxed);  // relaxed: as above
  if (!asked) forget(f, cluster);
  return asked;
}

bool take(Field& f, unsigned from, unsigned end) { return from >= end || set(f, from, end - from); }
void leave(Field& f, unsigned from, unsigned end) {
  if (from < end) clear(f, from, end - from);
}
// They become resident with the rest of the cluster.
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

// As large_prefer_huge, in one cluster.
void prefer_in(Field& f, unsigned cluster, unsigned from, unsigned end) {
  const unsigned first = cluster * kClusterGranules, last = first + kClusterGranules;
  const unsigned low = from > first ? from : first, high = end < last ? end : last;
  const bool soon = f.huge_from[cluster].get() - f.home->age.get() - 1 < kAges;  // also when the count has wrapped
  if (soon || !nothing_there(f, cluster) || !take(f, first, low)) return;
  if (!take(f, high, last)) return leave(f, first, low);
  // Once more, now that nobody else can change it.
  if (nothing_there(f, cluster) && ask(f, cluster)) {
    leave_resident(f, first, low);
    leave_resident(f, high, last);
  } else {
    leave(f, first, low);
    leave(f, high, last);
  }
}

}  // namespace

void large_prefer_huge(Field& f, unsigned from, unsigned count) {
  const unsigned end = from + count, most = f.granules / kClusterGranules;
  // As a rule the pages are there.
  if (count_resident_in(f, end - 1, 1) != 0 || !may_be_huge(bytes_in(count))) return;
  for (unsigned cluster = from / kClusterGranules; cluster < most && cluster * kClusterGranules < end; ++cluster) {
    prefer_in(f, cluster, from, end);
  }
}

void large_refuse_huge(Field& f, unsigned from, unsigned count) {
  const unsigned first = from / kClusterGranules, last = (from + count - 1) / kClusterGranules;
  const auto theirs = static_cast<uint32_t>(low_mask(last - first + 1) << first);
  // Relaxed, both: a bit is set while all granules of its cluster are taken; the caller has taken some since.
  if ((f.advised.load(order::relaxed) & theirs) == 0) return;
  const uint32_t mine = f.advised.fetch_and(~theirs, order::relaxed) & theirs;
  for (uint32_t rest = mine; rest != 0; rest &= rest - 1) {
    const unsigned cluster = lowest_bit(rest);
    f.huge_from[cluster].set(f.home->age.get() + kAges);
    os::refuse_huge_pages(granule_at(f, cluster * kClusterGranules), kClusterBytes);
  }
}

void large_forget_huge(Field& f, unsigned from, unsigned count) {
  for (unsigned cluster = from / kClusterGranules; cluster <= (from + count - 1) / kClusterGranules; ++cluster)
    forget(f, cluster);
}

}  // namespace folio
