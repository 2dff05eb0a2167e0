// Purging of large objects: through the index to the fields that have something, and there to the words.
#include "os/os.h"
#include "space/large.h"
#include "space/large_index.h"
#include "space/large_runs.h"
#include "space/pages.h"

namespace folio {

namespace {

constexpr unsigned kRefusedMost = 64;  // in a row, by the kernel: then all may be locked
constexpr size_t kVainMost = 64;       // fields that have nothing: each is no longer marked then

struct Purge {
  bool all;
  size_t most;
  size_t purged = 0;
  unsigned refused = 0;
  bool over() const { return purged >= most || refused == kRefusedMost; }
};

size_t purge_word(Field& f, unsigned w, uint64_t candidates) {
  // [large] acquire: the pages are no longer used; pairs with clear.
  const uint64_t mine = candidates & ~f.occupancy(w).fetch_or(candidates, order::acquire);
  // Relaxed: the granules are taken. Not those that another purge has had since the caller looked.
  const uint64_t dirty = mine & f.resident(w).load(order::relaxed);
  uint64_t gone = 0;
  visit_runs(dirty, kPurgeRunBytes >> kGranuleShift, [&](unsigned at, unsigned length, uint64_t mask) {
    if (purge_pages(granule_at(f, w * 64 + at), size_t{length} << kGranuleShift)) gone |= mask;
  });
  if (gone != 0) {
    f.resident(w).fetch_and(~gone, order::relaxed);  // relaxed: the granules are taken
    count_resident(-bytes_in(popcount(gone)));
    count_dirty(-bytes_in(popcount(gone)), true);
  }
  f.aged(w).fetch_and(~mine, order::relaxed);  // relaxed: a mark only
  clear_word(f, w, mine);
  return size_t{popcount(gone)} << kGranuleShift;
}

// Returns whether something is left that it would have taken.
bool purge_in_word(Field& f, unsigned w, Purge& p) {
  const uint64_t dirty = ready_in(f, w);
  if (dirty == 0) settle_word(f, w);
  const uint64_t wanted = p.all ? dirty : aged_in(f, w, dirty);
  if (wanted == 0) return false;
  // Not more than what is left of `most`, but at least one call's worth.
  const size_t left = p.most - p.purged < kPurgeRunBytes ? kPurgeRunBytes : p.most - p.purged;
  const auto most = static_cast<unsigned>(left >> kGranuleShift < 64 ? left >> kGranuleShift : 64);
  const uint64_t now = lowest_bits(wanted, most - most % granules_a_page());
  const size_t gone = purge_word(f, w, now);
  p.refused = gone == 0 ? p.refused + 1 : 0;
  p.purged += gone;
  if (ready_in(f, w) == 0) settle_word(f, w);
  return gone == 0 || now != wanted;
}

void purge_field(Field& f, Purge& p) {
  // Before the look: who frees meanwhile is not aged yet.
  if (!p.all) lower_mark(f, Mark::kAged);
  bool left = false;
  // [hint] seq_cst: pairs with mark_dirty.
  for (uint64_t words = f.dirty.load(order::seq_cst); words != 0; words &= words - 1) {
    if (p.over()) left = true;
    if (left && p.over()) break;
    left = purge_in_word(f, lowest_bit(words), p) || left;
  }
  if (left && !p.all) raise_mark(f, Mark::kAged);
  if (f.dirty.load(order::seq_cst) == 0) settle_field(f);  // [hint] seq_cst: as above
}

}  // namespace

size_t large_purge(bool all, size_t most_bytes) {
  Purge p{all, most_bytes};
  const Mark mark = all ? Mark::kDirty : Mark::kAged;
  size_t vain = 0;
  const size_t vain_most = kVainMost + most_bytes / kPurgeRunBytes;
  FieldPlace at;
  while (!p.over() && vain < vain_most) {
    Field* const f = find_marked(mark, &at);
    if (f == nullptr) break;
    const size_t before = p.purged;
    purge_field(*f, p);
    if (p.purged == before) ++vain;
  }
  return p.purged;
}

void large_age() {
  age_now.fetch_add(1, order::relaxed);  // relaxed: what it makes aged are marks
  age_marks();
}

}  // namespace folio
