#include "store/collapse.h"

#include "config/options.h"
#include "os/os.h"
#include "space/room.h"
#include "store/commit.h"
#include "store/occupancy.h"
#include "store/residency.h"

namespace folio {

constinit Atomic<uint8_t> forks{0};

namespace {

constexpr unsigned kLooksMost = 4096;  // chunks a call: at most a cache miss or two each
constexpr unsigned kChunksMost = 16;   // collapsed a call, about 0.3 ms each
constexpr uint64_t kEveryMs = 500;     // calls that do something
constexpr uint64_t kPauseMostMs = 64000;
constexpr unsigned kSpareShift = 5;  // a dense chunk has at most that share of its pages free, or not there

// The one thread's.
constinit struct {
  unsigned bin = 1;
  HintBlock* block = nullptr;  // null: the bin's first one
  unsigned slot = 0;
  uint64_t not_before = 0;
  uint64_t pause = kEveryMs;  // after the next one in vain
  bool awaited = false;       // some were dense in this round, and may be so in the next
} place;

bool at_start() { return place.bin == 1 && place.block == nullptr && place.slot == 0; }

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
  const uint8_t now = forks.load(order::relaxed);  // relaxed: a hint
  if (now == kForksMost || d.forks_before() != now) return false;
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

// Whether it has been dense since the last look; else it has to be so from now on.
bool has_stayed_dense(Descriptor& d) {
  const bool was = d.backing() == Backing::kDense;
  if (!is_dense(d)) {
    if (was) d.set_backing(Backing::kSmallPurged);
    return false;
  }
  if (!was) {
    d.set_backing(Backing::kDense);
    place.awaited = true;
  }
  return was;
}

// The system's setting, or the lack of huge pages, may last: it is asked more and more seldom.
bool wait_longer(uint64_t now) {
  place.not_before = now + place.pause;
  if (place.pause < kPauseMostMs) place.pause *= 2;
  place.awaited = false;
  return false;
}

bool look(uint64_t now) {
  unsigned collapsed = 0;
  for (unsigned looks = 0; looks < kLooksMost; ++looks) {
    Descriptor* const d = next();
    if (d == nullptr && at_start()) {
      const auto apart = 5 * static_cast<uint64_t>(options.decay);
      place.not_before = now + (apart < kEveryMs ? kEveryMs : apart);
      return place.awaited || collapsed != 0;
    }
    if (d == nullptr || !has_stayed_dense(*d)) continue;
    if (collapsed == 0 && !os::huge_pages_come()) return wait_longer(now);
    if (!collapse(*d)) return wait_longer(now);
    place.pause = kEveryMs;
    if (++collapsed == kChunksMost) break;
  }
  place.not_before = now + kEveryMs;
  return true;
}

}  // namespace

bool collapse_dense_chunks() {
  if (options.huge_pages == kHugePagesNever || room_is_tight()) return false;
  const uint64_t now = os::now_ms();
  if (now < place.not_before) return place.awaited;
  if (at_start()) place.awaited = false;
  return look(now);
}

bool collapse_if_dense(Descriptor& d) { return is_dense(d) && collapse(d); }

void collapse_note_fork() {
  const uint8_t before = forks.load(order::relaxed);                                        // relaxed: a hint
  if (before != kForksMost) forks.store(static_cast<uint8_t>(before + 1), order::relaxed);  // relaxed: as above
}

}  // namespace folio
