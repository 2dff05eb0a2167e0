#include "folio/collapse.h"

#include "config/options.h"
#include "folio/bin.h"
#include "folio/commit.h"
#include "folio/residency.h"
#include "os/os.h"
#include "space/room.h"

namespace folio {

namespace {

constexpr unsigned kLooksMost = 4096;  // chunks a call: at most a cache miss or two each
constexpr uint64_t kMsMost = 5;        // a call, once in half a second
constexpr unsigned kWaitMost = 64;     // calls, after one in vain
constexpr unsigned kSpareShift = 5;    // a dense chunk has at most that share of its pages free, or not there

constinit struct {
  unsigned bin = 1;
  HintBlock* block = nullptr;  // null: the bin's first one
  unsigned slot = 0;
  unsigned wait = 0, next_wait = 1;
} place;

Descriptor* next() {
  // [blocks] acquire: pairs with block_for.
  if (place.block == nullptr) place.block = bins[place.bin].blocks.load(order::acquire);
  Descriptor* const d = next_chunk(&place.block, &place.slot);
  if (d == nullptr) place.bin = place.bin + 1 < kBins ? place.bin + 1 : 1;
  return d;
}

// Of small objects, as only their chunks are huge at all: those of a page and more go one by one.
bool is_dense(Descriptor& d) {
  if (d.backing() == Backing::kHuge || has_pages_of_its_own(d.info())) return false;
  const Pages pages = ChunkPages(d).in_use();
  unsigned spare = 0;
  visit_words_of(pages, [&](unsigned w, uint64_t mask) {
    // Relaxed, both: an estimate.
    spare += popcount(mask & (~d.resident(w).load(order::relaxed) | d.dirty(w).load(order::relaxed)));
  });
  return spare <= pages.count() >> kSpareShift;
}

bool collapse(Descriptor& d) {
  if (commit_chunk(d) != Commit::kDone || !os::collapse(d.chunk(), kChunkBytes)) return false;
  d.set_backing(Backing::kHuge);
  note_whole(d);
  return true;
}

// The system's setting, or the lack of huge pages, may last: it is asked more and more seldom.
bool wait_longer() {
  place.wait = place.next_wait;
  if (place.next_wait < kWaitMost) place.next_wait *= 2;
  return false;
}

}  // namespace

bool collapse_dense_chunks() {
  if (options.huge_pages == kHugePagesNever || room_is_tight()) return false;
  if (place.wait != 0) {
    --place.wait;
    return false;
  }
  const uint64_t begin = os::now_ms();
  unsigned bins_done = 0;
  bool asked = false;
  for (unsigned looks = 0; looks < kLooksMost && bins_done < kBins;) {
    Descriptor* const d = next();
    if (d == nullptr) {
      ++bins_done;
      continue;
    }
    ++looks;
    if (!is_dense(*d)) continue;
    if (!asked && !os::huge_pages_come()) return wait_longer();
    asked = true;
    if (!collapse(*d)) return wait_longer();
    place.next_wait = 1;
    if (os::now_ms() - begin >= kMsMost) return true;
  }
  return asked || bins_done < kBins;
}

}  // namespace folio
