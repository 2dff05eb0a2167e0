// Keeps the end of the pause in which no huge page is asked for.
#include "space/huge_pace.h"

#include "config/size_classes.h"
#include "os/os.h"
#include "sync/relaxed.h"

namespace folio {

namespace {

constexpr uint64_t kQuickUs = 1500;  // a page that takes longer is slow
constexpr uint64_t kPauseTimes = 4, kNoneTimes = 64;
constexpr unsigned kSlowDoubledMost = 2, kNoneDoubledMost = 6;
constinit Hint<uint64_t> not_before{0};     // of os::now_ms()
constinit Hint<unsigned> slow_before{0};    // slow ones since many in a row were quick, at most kSlowDoubledMost
constinit Hint<unsigned> none_in_a_row{0};  // how often small pages came
constexpr unsigned kTrustedMost = 63;
constinit Hint<unsigned> quick{0};     // how many were trusted after the last quick one
constinit Hint<unsigned> trusted{0};   // so many more are not timed
constinit Hint<uint64_t> try_from{0};  // of os::now_ms(): when try_huge_page may be called by a second thread

}  // namespace

constinit ForeseenClusters foreseen_huge, foreseen_large;

bool huge_pages_due() {
  const uint64_t until = not_before.get();
  return until == 0 || os::now_ms() >= until;
}

bool trust_huge_pages(unsigned pages) {
  const unsigned left = trusted.get();
  if (left < pages) return false;
  trusted.set(left - pages);
  return true;
}

void note_huge_page(uint64_t us, bool came) {
  const unsigned none = came ? 0 : none_in_a_row.get() + 1;
  none_in_a_row.set(none);
  const bool is_quick = came && us <= kQuickUs;
  quick.set(!is_quick ? 0 : quick.get() < kTrustedMost ? 2 * quick.get() + 1 : kTrustedMost);
  trusted.set(quick.get());
  if (is_quick) {
    if (quick.get() == kTrustedMost) slow_before.set(0);
    return not_before.set(0);
  }
  uint64_t times = kNoneTimes << (none < kNoneDoubledMost ? none : kNoneDoubledMost);
  if (came) {
    const unsigned slow = slow_before.get();
    times = kPauseTimes << slow;
    if (slow < kSlowDoubledMost) slow_before.set(slow + 1);
  }
  // Small pages may have come within microseconds: then at least some milliseconds.
  not_before.set(os::now_ms() + times * us / 1000 + times / 16);
}

// In kSmallUs nothing zeroes a huge page: it was a small one. (Without that look the others came too: 1.8 MiB for
// nothing in each process of 4 MiB where huge pages are off.) Else, if the first touch brings a huge page, the second
// takes no time. If not, it brings small pages, as callers count all as resident.
Touched time_huge_page(char* cluster) {
  constexpr uint64_t kSmallUs = 8;
  const uint64_t began = os::cpu_us();
  if (!os::populate(cluster, os::page_bytes())) return Touched::kNone;
  const uint64_t first = os::cpu_us() - began;
  if (first < kSmallUs) {
    note_huge_page(first, false);
    return Touched::kOnePage;
  }
  os::populate(cluster, kClusterBytes);
  const uint64_t all = os::cpu_us() - began;
  note_huge_page(all, all <= 2 * first);
  return Touched::kAll;
}

bool try_huge_page() {
  constexpr uint64_t kMostMs = 100;  // then another thread may: the first one has vanished
  // An object of several clusters tries for each: not after a slow one.
  if (!huge_pages_due()) return false;
  const uint64_t now = os::now_ms();
  uint64_t from = try_from.get();
  if (now < from || !try_from.replace(from, now + kMostMs)) return false;
  auto* const tried = static_cast<char*>(os::reserve(kClusterBytes, kClusterBytes));
  bool timed = false;
  if (tried != nullptr) {
    timed = os::commit(tried, kClusterBytes) && os::prefer_huge_pages(tried, kClusterBytes) &&
            time_huge_page(tried) != Touched::kNone;
    os::unreserve(tried, kClusterBytes);
  }
  if (!timed) note_huge_page(0, false);
  try_from.set(0);
  return timed && huge_pages_due();
}

}  // namespace folio
