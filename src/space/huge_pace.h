// How often huge pages are asked for: seldom while they are slow to come.
//
// A huge page takes 0.1 to 0.3 ms, most of it for zeroing; small pages in its place take 0.5 ms. But where memory is
// fragmented, the kernel moves other pages out of the way first; and a virtual machine that gives free memory back to
// its host waits for the host. (5 ms a page were seen: 3.1 s in place of 0.65 for a burst of 1 GiB.) So pages are
// timed, and after a slow one there is a pause: 4 times its time, after the second 8, from the third on 16, until six
// in a row have been quick. So slow pages take at most 1/16 of the time where they go on, and one that was slow by
// chance costs little. (With 64 times at once, a page of 2 ms, among a hundred of 0.3, had small pages come in its
// program's next 130 ms: a vector's growth to tens of MiB took 0.30 s in place of 0.21. With 16 to 64 times, on a busy
// AMD EPYC whose slow pages took 4 ms, and small ones in place of one 1.7, a program that lives for ten seconds in 300
// MB had 46,000 to 95,000 page faults and took 10.6 to 11.2 s, four runs; with 4 to 16 times 31,000 and 9.5, one run;
// mimalloc 2 9.0.)
//
// To be timed, a page has to be touched here. After a quick one the next ones are trusted: 1, 3, 7, at most 63. They
// come where the program first writes, however late (advised_runs.h). (Producers and consumers of objects that nobody
// writes, 512 bytes and 1 KiB, peaked at 27 to 196 MiB with each page touched here, at 7 to 18 with none.)
//
// Small pages may come in place of a huge one: the kernel has none, huge pages are off, or it keeps a table of small
// pages for its place. The pause then doubles for each time in a row. (With huge pages off, a program that empties and
// fills 2 MiB by turns took 512 faults and 0.7 ms a turn without the pause; now 4 faults and 0.02 ms.)
//
// Of a huge object the first page is timed for all that follow, unless all are trusted.
//
// Who may touch it: everybody, at any time.
#pragma once

#include <stddef.h>

#include <stdint.h>

#include "config/size_classes.h"
#include "sync/relaxed.h"

namespace folio {

// Whether a huge page may be asked for: there is no pause.
bool huge_pages_due();
// Whether the next `pages` huge pages need not be timed; counts them.
bool trust_huge_pages(unsigned pages = 1);
// Touches a committed, advised cluster, and notes how long its pages took, and whether they came as a huge page.
// Returns what is there then: all; one page, where that was a small one beyond doubt; or none, if the kernel cannot
// touch it so, and nothing was noted.
enum class Touched : uint8_t { kNone, kOnePage, kAll };
Touched time_huge_page(char* cluster);
// Notes that a cluster's pages took `us` microseconds of CPU time (real time would include other threads), and whether
// they came as a huge page.
void note_huge_page(uint64_t us, bool came);

// Touches a huge page that nobody needs, and notes how long it took. Returns whether huge pages may be asked for; false
// while another thread is at it. (With 300 threads at once their tries held 150 MiB.)
bool try_huge_page();

// Foreseen clusters, 2 MiB each: of objects that got huge pages since they need not be zero. Huge objects may have
// kForeseenMost, and large ones as much: what a program of sparse ones can lose.
inline constexpr size_t kForeseenMost = size_t{128} << 20;
class ForeseenClusters {
 public:
  bool has_room(size_t more) const { return clusters_.get() + more <= kMost; }
  void note(int64_t more) { clusters_.add(static_cast<uint64_t>(more)); }  // wraps where there are fewer
  // Counts so many more, unless that is too many.
  bool add(size_t more = 1) {
    if (!has_room(more)) return false;  // a look first: at the bound each huge malloc comes by
    if (clusters_.add(more) + more <= kMost) return true;
    clusters_.sub(more);
    return false;
  }

 private:
  static constexpr uint64_t kMost = kForeseenMost >> kClusterShift;
  Counter<uint64_t> clusters_{0};
};
extern ForeseenClusters foreseen_huge, foreseen_large;

}  // namespace folio
