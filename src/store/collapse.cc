// Visits clusters in turn, finds those whose chunks stay dense, and has the kernel make each one huge page.
#include "store/collapse.h"

#include "config/options.h"
#include "os/os.h"
#include "space/chunks.h"
#include "space/huge_pace.h"
#include "space/room.h"
#include "store/cluster.h"
#include "store/commit.h"
#include "store/occupancy.h"
#include "store/residency.h"

namespace folio {

constinit Hint<uint8_t> forks{0};

namespace {

constexpr unsigned kChecksMost = 16384;  // chunks visited per call, at most a cache miss or two each
constexpr unsigned kClustersMost = 16;   // collapsed per call, about 0.3 ms each
constexpr uint64_t kEveryMs = 500;       // between two calls that do something
constexpr unsigned kPauseMostShift = 7;  // the pause after refusals: at most kEveryMs << 7
constexpr unsigned kSpareShift = 5;      // a dense chunk has at most 1 / 2^5 of its pages free or absent

bool at_start(const CollapsePlace& place) { return place.bin_before == 0 && place.block == nullptr && place.slot == 0; }

Descriptor* next(Store& store) {
  CollapsePlace& place = store.collapse;
  // [blocks] acquire: pairs with block_for.
  if (place.block == nullptr) place.block = store.bins[place.bin_before + 1].blocks.load(order::acquire);
  Descriptor* const d = next_chunk(&place.block, &place.slot);
  if (d == nullptr) place.bin_before = (place.bin_before + 1) % (kBins - 1);
  return d;
}

// The chunks of a cluster, if bins have all of them.
struct Cluster {
  Descriptor* chunk[kClusterChunks];
  bool complete;
  explicit Cluster(Descriptor& d) {
    unsigned n = 0;
    complete = visit_cluster(d.chunk(), [&](Descriptor& each) {
                 chunk[n++] = &each;
                 return true;
               }) == kClusterChunks;
  }
};

}  // namespace

// Only chunks of objects below a page are made huge, as larger objects are purged one by one.
bool is_dense(Descriptor& d) {
  const bool is_huge = d.backing() == Backing::kHuge && is_cluster(d.first, kClusterHuge);
  if (is_huge || has_pages_of_its_own(d.info())) return false;
  if (d.forks_before() != forks.get()) return false;
  const Pages pages = ChunkPages(d).in_use();
  unsigned spare = 0;
  visit_words_of(pages, [&](unsigned w, uint64_t mask) {
    // Relaxed: an estimate.
    spare += popcount(mask & (~d.resident(w).load(order::relaxed) | d.dirty(w).load(order::relaxed)));
  });
  return spare <= pages.count() >> kSpareShift;
}

// With the commit words busy, so that no chunk leaves its bin meanwhile: its marks would count for nobody.
bool collapse_together(Descriptor* const* chunks, unsigned n) {
  unsigned closed = 0;
  while (closed < n && commit_chunk(*chunks[closed]) == Commit::kDone && close_commit(*chunks[closed])) ++closed;
  const bool collapsed = closed == n && os::collapse(chunks[0]->chunk(), n * kChunkBytes);
  if (collapsed) note_cluster_huge(chunks[0]->chunk());
  for (unsigned i = 0; i < closed; ++i) {
    if (collapsed) {
      chunks[i]->set_backing(Backing::kHuge);
      note_whole(*chunks[i]);
    }
    open_commit(*chunks[i]);
  }
  return collapsed;
}

bool collapse_cluster(Descriptor& d) {
  const Cluster cluster(d);
  return cluster.complete && collapse_together(cluster.chunk, kClusterChunks);
}

namespace {

// Whether the chunk was dense at the last visit and is dense now. Notes the present state for the next visit.
bool has_stayed_dense(Descriptor& d, bool* is) {
  const bool was = d.backing() == Backing::kDense;
  *is = is_dense(d);
  if (*is && !was) d.set_backing(Backing::kDense);
  if (!*is && was) d.set_backing(Backing::kSmallPurged);
  return was && *is;
}

// The same for the cluster that begins with the chunk.
bool has_stayed_dense(CollapsePlace& place, Descriptor& d) {
  if (window_slot(d.first) % kClusterChunks != 0) return false;
  const Cluster cluster(d);
  bool stayed = cluster.complete, all = cluster.complete;
  for (unsigned i = 0; cluster.complete && i < kClusterChunks; ++i) {
    bool is;
    if (!has_stayed_dense(*cluster.chunk[i], &is)) stayed = false;
    all = all && is;
  }
  if (all && !stayed) place.awaited = true;
  return stayed;
}

// Doubles the pause until the next try: the system's setting, or its lack of huge pages, may last.
bool wait_longer(CollapsePlace& place, uint64_t now) {
  place.not_before = now + (kEveryMs << place.in_vain);
  if (place.in_vain < kPauseMostShift) ++place.in_vain;
  place.awaited = false;
  return false;
}

bool poll(Store& store, uint64_t now) {
  CollapsePlace& place = store.collapse;
  unsigned collapsed = 0;
  for (unsigned checks = 0; checks < kChecksMost; ++checks) {
    Descriptor* const d = next(store);
    if (d == nullptr && at_start(place)) {
      const auto apart = 5 * static_cast<uint64_t>(options.decay);
      place.not_before = now + (apart < kEveryMs ? kEveryMs : apart);
      return place.awaited || collapsed != 0;
    }
    if (d == nullptr || !has_stayed_dense(place, *d)) continue;
    if (collapsed == 0 && !os::huge_pages_come()) return wait_longer(place, now);
    const uint64_t began = os::cpu_us();
    if (!collapse_cluster(*d)) return wait_longer(place, now);
    note_huge_page(os::cpu_us() - began, true);
    place.in_vain = 0;
    if (++collapsed == kClustersMost || !huge_pages_due()) break;
  }
  place.not_before = now + kEveryMs;
  return true;
}

}  // namespace

bool collapse_dense_clusters(Store& store) {
  CollapsePlace& place = store.collapse;
  if (options.huge_pages == kHugePagesNever || room_is_tight()) return false;
  const uint64_t now = os::now_ms();
  if (now < place.not_before || !huge_pages_due()) return place.awaited;
  if (at_start(place)) place.awaited = false;
  return poll(store, now);
}

void collapse_note_fork() { forks.set((forks.get() + 1) % kForksCounted); }

}  // namespace folio
