// Hands out vacant chunks, those of open clusters, opens clusters, then asks the fields; a chunk that comes back is
// vacant, or goes back to its field.
#include "space/chunks.h"

#include "os/os.h"
#include "space/advised_runs.h"
#include "space/chunk_table.h"
#include "space/huge_pace.h"
#include "space/large.h"
#include "space/metadata.h"
#include "space/pages.h"
#include "space/region.h"
#include "sync/relaxed.h"

namespace folio {

constinit Atomic<uint64_t> open_clusters[2]{};

namespace {

constinit Counter<size_t> in_use{0};
constinit AdvisedRuns advised;

uint64_t rest_of(const char* chunk, uint64_t left) {
  return (reinterpret_cast<uintptr_t>(chunk) >> kChunkShift) << 32 | left;
}
char* chunk_in(uint64_t rest) { return reinterpret_cast<char*>(rest >> 32 << kChunkShift); }
uint64_t left_in(uint64_t rest) { return rest & UINT32_MAX; }

char* take_open(Atomic<uint64_t>& open) {
  uint64_t now = open.load(order::relaxed);  // relaxed: compare_exchange decides
  while (left_in(now) != 0) {
    const uint64_t less = rest_of(chunk_in(now) + kChunkBytes, left_in(now) - 1);
    // [region] acquire: the cluster's pages and its state; pairs with open_cluster.
    if (open.compare_exchange(now, less, order::acquire)) return chunk_in(now);
  }
  return nullptr;
}

// Vacant chunks wait in their windows' bitmaps. They are not unmapped one by one: no cluster fills such a hole, while
// windows, hints and descriptors stay for each place. (4,500 phases of 30 to 100 MiB with survivors took 97 MiB of
// metadata.)
// A raised bit here says that a window may have some; lowered as in store/hints.h, it is never lost.
constinit Atomic<uint64_t> vacant_windows[kWindows / 64];
constinit Counter<size_t> vacant_count{0};  // not less than there are

bool any_vacant(const Window& window) {
  for (const Atomic<uint64_t>& word : window.vacant) {
    // [hint] seq_cst: the second look, after the window's bit was lowered; pairs with put_vacant.
    if (word.load(order::seq_cst) != 0) return true;
  }
  return false;
}

// Calls visit(window) for those that may have vacant chunks, until it returns true; whether it did.
template <class Visit>
bool visit_vacant(Visit&& visit) {
  if (vacant_count.get() == 0) return false;
  for (unsigned w = 0; w < kWindows / 64; ++w) {
    // Relaxed: a hint that is missed stays raised.
    for (uint64_t bits = vacant_windows[w].load(order::relaxed); bits != 0; bits &= bits - 1) {
      // [window] acquire: sees its number; pairs with window_make
      Window* const window = windows[w * 64 + lowest_bit(bits)].load(order::acquire);
      if (window == nullptr) continue;
      if (visit(*window)) return true;
      if (any_vacant(*window)) continue;
      // [hint] seq_cst: before the second look; pairs with put_vacant.
      vacant_windows[w].fetch_and(~(bits & -bits), order::seq_cst);
      if (any_vacant(*window)) vacant_windows[w].fetch_or(bits & -bits, order::seq_cst);  // [hint] seq_cst: as above
    }
  }
  return false;
}

bool is_committed_slot(const Window& window, unsigned slot) {
  // Relaxed: a hint. Who gets the chunk looks again, after the acquire in take_vacant.
  return (window.cluster[slot / kClusterChunks].load(order::relaxed) & kClusterCommitted) != 0;
}

// One of a committed cluster, or one that is not.
char* take_vacant(bool committed) {
  char* chunk = nullptr;
  visit_vacant([&](Window& window) {
    for (unsigned w = 0; w < kWindowChunks / 64; ++w) {
      // Relaxed: a glance.
      for (uint64_t bits = window.vacant[w].load(order::relaxed); bits != 0; bits &= bits - 1) {
        const uint64_t bit = bits & -bits;
        if (is_committed_slot(window, w * 64 + lowest_bit(bit)) != committed) continue;
        // [region] acquire: others have used it; pairs with put_vacant.
        if ((window.vacant[w].fetch_and(~bit, order::acquire) & bit) == 0) continue;
        vacant_count.sub(1);
        chunk = window.chunk(w * 64 + lowest_bit(bit));
        return true;
      }
    }
    return false;
  });
  return chunk;
}

void put_vacant(char* chunk) {
  Window* const window = window_of(chunk);
  const unsigned slot = window_slot(chunk);
  const auto place = static_cast<unsigned>(window->number % kWindows);
  vacant_count.add(1);
  // [region] after whoever used the chunk; pairs with take_vacant. [hint] seq_cst, both: before the window's bit; pairs
  // with visit_vacant.
  window->vacant[slot / 64].fetch_or(uint64_t{1} << slot % 64, order::seq_cst);
  vacant_windows[place / 64].fetch_or(uint64_t{1} << place % 64, order::seq_cst);  // [hint] seq_cst: as above
}

// For a committed cluster of which no page is resident. False if the kernel refuses, or brings small pages: of one
// that was purged some page may be there.
bool ask_for_huge_page(char* start, bool is_new) {
  if (!os::prefer_huge_pages(start, kClusterBytes)) return false;
  if ((!is_new || !trust_huge_pages()) && time_huge_page(start) == Touched::kOnePage) {
    os::refuse_huge_pages(start, kClusterBytes);
    return false;
  }
  advised.add(start, is_new);
  return true;
}

// Opens a cluster for the caller, who gets its first chunk. Others who find none open meanwhile open one each; what is
// left of all but one is vacant then.
char* open_cluster(Atomic<uint64_t>& open, bool huge) {
  char* const start = carve_cluster();
  if (start == nullptr) return nullptr;
  if (!chunk_table_open(start, kClusterBytes) || window_make(start) == nullptr) {
    uncarve_cluster(start);
    return nullptr;
  }
  const bool committed = os::commit(start, kClusterBytes);
  const bool is_huge = huge && committed && runs_left() && ask_for_huge_page(start, true);
  unsigned state = 0;
  if (committed) state |= kClusterCommitted;
  if (is_huge) state |= kClusterHuge | kClusterCame;
  cluster_state(start)->store(static_cast<uint8_t>(state), order::relaxed);  // relaxed: published below
  const uint64_t rest = rest_of(start + kChunkBytes, kClusterChunks - 1);
  uint64_t now = open.load(order::relaxed);  // relaxed: compare_exchange decides
  while (left_in(now) == 0) {
    // [region] release: the cluster's pages and its state; pairs with take_open.
    if (open.compare_exchange(now, rest, order::release)) return start;
  }
  // Vacant chunks of a huge page count no pages once it is broken.
  if (is_huge) {
    break_cluster(start);
    purge_pages(start + kChunkBytes, kClusterBytes - kChunkBytes, kClusterBytes - kChunkBytes);
  }
  in_use.add(kClusterChunks - 1);
  for (unsigned i = 1; i < kClusterChunks; ++i) put_vacant(start + i * kChunkBytes);
  return start;
}

// A chunk that a field has lent, or null. Clusters may have been there before: of what they left in its state nothing
// holds.
char* lent(char* chunk) {
  Atomic<uint8_t>* const state = chunk == nullptr ? nullptr : cluster_state(chunk);
  if (state != nullptr) state->store(0, order::relaxed);  // relaxed: published with the chunk
  return chunk;
}

}  // namespace

// What is vacant counts as in use.
char* acquire_chunk(bool huge, bool* is_new) {
  *is_new = false;
  if (char* const chunk = take_vacant(true)) return chunk;
  char* chunk = take_open(open_clusters[huge]);
  // Where the kernel refused to commit a cluster it would refuse another one.
  char* const bare = chunk == nullptr ? take_vacant(false) : nullptr;
  if (chunk == nullptr && bare == nullptr) chunk = open_cluster(open_clusters[huge], huge);
  if (chunk == nullptr && bare == nullptr) chunk = take_open(open_clusters[!huge]);
  if (chunk != nullptr) in_use.add(1);
  *is_new = chunk != nullptr;
  if (bare != nullptr) chunk = bare;
  if (chunk != nullptr && is_cluster(chunk, kClusterCommitted)) return chunk;
  // What a field has left is committed.
  char* const other = acquire_lent_chunk();
  if (other == nullptr) return chunk;
  if (chunk != nullptr) put_vacant(chunk);
  *is_new = false;
  return other;
}

char* acquire_lent_chunk() {
  char* const chunk = lent(lend_chunk());
  if (chunk != nullptr) in_use.add(1);
  return chunk;
}

bool lend_to_metadata() {
  char* const chunk = acquire_lent_chunk();
  if (chunk != nullptr) metadata_add(chunk, kChunkBytes);
  return chunk != nullptr;
}

char* acquire_resident_chunk(uint64_t* resident) {
  char* const chunk = lent(lend_resident_chunk(resident));
  if (chunk != nullptr) in_use.add(1);
  return chunk;
}

void return_chunk(char* chunk) {
  if (take_back_chunk(chunk)) {
    in_use.sub(1);
  } else {
    put_vacant(chunk);
  }
}

size_t unmap_vacant_clusters(size_t most) {
  constexpr unsigned kPerWord = 64 / kClusterChunks;
  size_t unmapped = 0;
  visit_vacant([&](Window& window) {
    for (unsigned i = 0; i < kWindowChunks / kClusterChunks; ++i) {
      Atomic<uint64_t>& word = window.vacant[i / kPerWord];
      const uint64_t all = low_mask(kClusterChunks) << i % kPerWord * kClusterChunks;
      uint64_t now = word.load(order::relaxed);  // relaxed: a glance
      while ((now & all) == all) {
        // [region] acquire: others have used it; pairs with put_vacant.
        if (!word.compare_exchange(now, now & ~all, order::acquire)) continue;
        vacant_count.sub(kClusterChunks);
        char* const start = window.chunk(i * kClusterChunks);
        break_cluster(start);
        if (uncarve_cluster(start)) {
          in_use.sub(kClusterChunks);
          ++unmapped;
        } else {
          for (unsigned chunk = 0; chunk < kClusterChunks; ++chunk) put_vacant(start + chunk * kChunkBytes);
        }
        break;
      }
      if (unmapped >= most) return true;
    }
    return false;
  });
  return unmapped;
}

size_t chunks_in_use() { return in_use.get(); }

Atomic<uint8_t>* cluster_state(const void* address) {
  Window* const window = window_of(address);
  return window == nullptr ? nullptr : &window->cluster[window_slot(address) / kClusterChunks];
}

void break_cluster(char* chunk) {
  constexpr unsigned kMarks = kClusterHuge | kClusterPurged;
  Atomic<uint8_t>* const state = cluster_state(chunk);
  if (state == nullptr || (state->load(order::relaxed) & kMarks) == 0) return;           // relaxed: a hint
  const unsigned was = state->fetch_and(static_cast<uint8_t>(~kMarks), order::relaxed);  // relaxed: a hint
  if ((was & kClusterHuge) != 0) advised.withdraw(cluster_start(chunk));
}

void note_cluster_purged(char* chunk) {
  break_cluster(chunk);
  cluster_state(chunk)->fetch_or(kClusterPurged, order::relaxed);  // relaxed: a hint
}

void note_cluster_huge(char* chunk) {
  cluster_state(chunk)->fetch_or(kClusterHuge, order::relaxed);  // relaxed: a hint
}

bool touch_purged_cluster(char* chunk, bool may_be_huge) {
  Atomic<uint8_t>* const state = cluster_state(chunk);
  if (state == nullptr) return false;
  uint8_t was = state->load(order::relaxed), now;  // relaxed: a hint
  do {
    if ((was & kClusterPurged) == 0) return false;
    now = static_cast<uint8_t>(was ^ (may_be_huge ? kClusterPurged | kClusterHuge : kClusterPurged));
  } while (!state->compare_exchange(was, now, order::relaxed));  // relaxed: a hint
  if (!may_be_huge) return false;
  if (!ask_for_huge_page(cluster_start(chunk), false)) {
    break_cluster(chunk);
    return false;
  }
  // Broken before the advice: whoever did it may have unmapped a part.
  if (is_cluster(chunk, kClusterHuge)) return true;
  advised.withdraw(cluster_start(chunk));
  return false;
}

}  // namespace folio
