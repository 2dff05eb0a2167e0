// Commits a chunk in steps, one thread at a time. Descriptor::committed: | busy : 1 | committed, in 4 KiB : 15 |
#include "store/commit.h"

#include "os/os.h"

namespace folio {

namespace {

constexpr uint16_t kBusyMark = 0x8000;
constexpr size_t kStepLeast = size_t{64} << 10;

size_t bytes_in(uint16_t word) { return size_t{word & ~unsigned{kBusyMark}} * kPageBytesLeast; }

// The first step includes the unused pages before the first object. So each step's mapping merges with the one before,
// and the chunk is one mapping, which a huge page needs. (Mappings whose pages were touched before never merge.)
bool commit_range(Descriptor& d, size_t from, size_t to) { return os::commit(d.chunk() + from, to - from); }

// Where a step that must reach `end` ends: it doubles what is committed, so a chunk takes few steps.
size_t step_to(const Descriptor& d, size_t have, size_t end) {
  const auto first = static_cast<size_t>(d.first - d.chunk());
  const size_t from = have == 0 ? first : have, step = from - first < kStepLeast ? kStepLeast : from - first;
  const size_t wanted = end > from + step ? end : from + step;
  return wanted >= first + size_t{d.info().objects} * d.info().size ? kChunkBytes : wanted;
}

}  // namespace

// [commit] acquire: after the kernel has made it writable; pairs with commit_to.
size_t committed_bytes(const Descriptor& d) { return bytes_in(d.committed.load(order::acquire)); }

Commit commit_to(Descriptor& d, size_t end) {
  uint16_t word;
  do {
    word = d.committed.load(order::acquire);  // [commit] acquire: the last step's pages; pairs with the store below
    if (end <= bytes_in(word)) return Commit::kDone;
    if ((word & kBusyMark) != 0) return Commit::kBusy;
    // Relaxed: the load has acquired the step before. unseen: as a store it would commit a step twice (close_commit)
  } while (!d.committed.compare_exchange(word, word | kBusyMark, order::relaxed));
  const size_t have = bytes_in(word);
  size_t now = step_to(d, have, end);
  if (!commit_range(d, have, now)) now = commit_range(d, have, end) ? end : have;
  // [commit] release: whoever sees this may write there; pairs with the loads above and in committed_bytes.
  d.committed.store(static_cast<uint16_t>(now / kPageBytesLeast), order::release);
  return now >= end ? Commit::kDone : Commit::kRefused;
}

bool close_commit(Descriptor& d) {
  uint16_t word = d.committed.load(order::relaxed);  // relaxed: compare_exchange decides
  if ((word & kBusyMark) != 0) return false;
  // Relaxed: the caller does not touch committed pages; what others did there comes with the objects that it claims.
  // unseen: a store would have a concurrent step's pages committed twice, which only undoes a program's own mprotect
  return d.committed.compare_exchange(word, word | kBusyMark, order::relaxed);
}

void open_commit(Descriptor& d) {
  // Relaxed: a read-modify-write, so it continues the release sequence of commit_to's store.
  d.committed.fetch_and(static_cast<uint16_t>(~kBusyMark), order::relaxed);
}

Commit commit_chunk(Descriptor& d) { return commit_to(d, kChunkBytes); }

uint64_t commit_objects_of_part(Descriptor& d, unsigned folio, uint64_t choice, Commit* result) {
  const size_t size = d.info().size, page = os::page_bytes(), before = size_t{folio} * kFolioObjects;
  const auto first = static_cast<size_t>(d.first - d.chunk());
  const auto commit_up_to = [&](unsigned bit) {
    return commit_to(d, round_up(first + (before + bit + 1) * size, page));
  };
  *result = commit_up_to(highest_bit(choice));
  if (*result == Commit::kDone) return choice;
  commit_up_to(lowest_bit(choice));
  const size_t have = committed_bytes(d);
  const size_t usable = have < first ? 0 : (have - first) / size;
  return usable <= before ? 0 : choice & low_mask(static_cast<unsigned>(usable - before < 64 ? usable - before : 64));
}

}  // namespace folio
