// Purging of large objects: through the index to the fields that have something, and there to the words.
#include "os/os.h"
#include "space/fields.h"
#include "space/large.h"
#include "space/large_huge.h"
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

// Adjacent words of which a purge has claimed granules, so that one call may purge a range that spans words. With a
// call for each word (1 MiB), the calls took half of the time of a free of 5 MiB.
constexpr unsigned kWordsMost = 4;
struct Claim {
  unsigned first = 0, words = 0;
  uint64_t mine[kWordsMost], dirty[kWordsMost], gone[kWordsMost];
};

void claim_word(Field& f, unsigned w, uint64_t candidates, Claim& c) {
  if (c.words == 0) c.first = w;
  // [large] acquire: the pages are no longer used; pairs with clear.
  const uint64_t mine = candidates & ~f.occupancy(w).fetch_or(candidates, order::acquire);
  c.mine[c.words] = mine;
  // Relaxed: the granules are taken. Not those that another purge has had since the caller looked.
  c.dirty[c.words] = mine & f.resident(w).load(order::relaxed);
  c.gone[c.words++] = 0;
}

// The program may have advised huge pages for a freed object of this size, as numpy does from 4 MiB on. The purge takes
// the advice back: else khugepaged would bring back what was purged, and the mapping would not merge with its
// neighbours.
constexpr size_t kAdvisedLeast = size_t{1} << 20;

// Calls madvise for each row of granules of the claim.
void purge_rows(Field& f, Claim& c) {
  const unsigned end = c.words * 64;
  const auto dirty = [&](unsigned g) { return (c.dirty[g / 64] >> g % 64 & 1) != 0; };
  for (unsigned g = 0, row; g < end; g = row + 1) {
    for (row = g; row < end && dirty(row);) row += row % 64 == 0 && c.dirty[row / 64] == ~uint64_t{0} ? 64 : 1;
    if (row == g) continue;
    char* const start = granule_at(f, c.first * 64 + g);
    const size_t bytes = size_t{row - g} << kGranuleShift;
    large_refuse_huge(f, c.first * 64 + g, row - g);
    if (bytes >= kAdvisedLeast) os::refuse_huge_pages(start, bytes);
    if (!purge_pages(start, bytes)) continue;
    visit_words(g, row - g, [&](unsigned w, uint64_t mask, unsigned) {
      c.gone[w] |= mask;
      return true;
    });
  }
}

// Purges what was claimed, and gives it back. Returns bytes.
size_t purge_claim(Field& f, Claim& c) {
  purge_rows(f, c);
  unsigned sum = 0;
  for (unsigned i = 0; i < c.words; ++i) {
    const unsigned w = c.first + i, gone = popcount(c.gone[i]);
    f.resident(w).fetch_and(~c.gone[i], order::relaxed);  // relaxed: the granules are taken
    f.aged(w).fetch_and(~c.mine[i], order::relaxed);      // relaxed: a mark only
    count_resident(-bytes_in(gone));
    count_dirty(-bytes_in(gone), true);
    if (c.mine[i] != 0) large_forget_huge(f, w * 64, 64);
    clear_word(f, w, c.mine[i]);
    if (ready_in(f, w) == 0) settle_word(f, w);
    sum += gone;
  }
  c.words = 0;
  return size_t{sum} << kGranuleShift;
}

uint64_t wanted_in(Field& f, unsigned w, const Purge& p) {
  const uint64_t dirty = ready_in(f, w);
  if (dirty == 0) settle_word(f, w);
  return p.all ? dirty : aged_in(f, w, dirty);
}

class FieldPurge {
 public:
  FieldPurge(Field& f, Purge& p) : f_(f), p_(p) {}

  // Claims of the word what is to be purged. An earlier claim that is not adjacent, or full, is purged first.
  void add(unsigned w) {
    if (claim_.words != 0 && (claim_.first + claim_.words != w || claim_.words == kWordsMost)) purge();
    const uint64_t wanted = wanted_in(f_, w, p_);
    if (wanted == 0) return;
    // Not more than what is left of `most`, but at least one call's worth.
    const size_t done = p_.purged + claimed_;
    const size_t left = done + kPurgeRunBytes > p_.most ? kPurgeRunBytes : p_.most - done;
    const auto most = static_cast<unsigned>(left >> kGranuleShift < 64 ? left >> kGranuleShift : 64);
    const uint64_t now = lowest_bits(wanted, most - most % granules_a_page());
    claim_word(f_, w, now, claim_);
    claimed_ += size_t{popcount(now)} << kGranuleShift;
    left_ = left_ || now != wanted;
  }

  void purge() {
    if (claim_.words == 0) return;
    const size_t gone = purge_claim(f_, claim_);
    p_.refused = gone == 0 ? p_.refused + 1 : 0;
    p_.purged += gone;
    left_ = left_ || gone != claimed_;
    claimed_ = 0;
  }

  bool enough() const { return p_.over() || p_.purged + claimed_ >= p_.most; }
  void stop() { left_ = true; }
  bool left() const { return left_; }  // something that it would have taken

 private:
  Field& f_;
  Purge& p_;
  Claim claim_;
  size_t claimed_ = 0;  // not purged yet
  bool left_ = false;
};

void purge_field(Field& f, Purge& p) {
  // Before the look: who frees meanwhile is not aged yet.
  if (!p.all) lower_mark(f, Mark::kAged);
  FieldPurge purge(f, p);
  uint64_t words = f.dirty.load(order::relaxed);  // relaxed: what this misses stays marked
  for (; words != 0 && !purge.enough(); words &= words - 1) purge.add(lowest_bit(words));
  if (words != 0) purge.stop();
  purge.purge();
  if (purge.left() && !p.all) raise_mark(f, Mark::kAged);
  if (f.dirty.load(order::relaxed) == 0) settle_field(f);  // relaxed: which looks again
}

}  // namespace

size_t large_purge(Fields& fields, bool all, size_t most_bytes) {
  Purge p{all, most_bytes};
  const Mark mark = all ? Mark::kDirty : Mark::kAged;
  size_t vain = 0;
  const size_t vain_most = kVainMost + most_bytes / kPurgeRunBytes;
  FieldPlace at{&fields.index};
  while (!p.over() && vain < vain_most) {
    Field* const f = find_marked(mark, &at);
    if (f == nullptr) break;
    const size_t before = p.purged;
    purge_field(*f, p);
    if (p.purged == before) ++vain;
  }
  return p.purged;
}

void large_age(Fields& fields) {
  fields.age.add(1);
  age_marks(fields.index);
}

}  // namespace folio
