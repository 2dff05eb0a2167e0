// Page accounting: two estimates that decide when to purge (policy/retain.h), and statistics. Written wherever pages
// become resident, free or purged, by stores that decide nothing themselves.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "os/os.h"
#include "sync/relaxed.h"

namespace folio {

// dirty is part of resident; both are signed sums that may be off by what is in flight.
struct alignas(64) PageCounts {
  Counter<int64_t> resident{0};      // bytes of objects' pages that may be resident
  Counter<int64_t> dirty{0};         // of these, bytes that are free
  Counter<int64_t> dirty_large{0};   // of these, of large and huge objects
  Counter<uint64_t> purged{0};       // bytes given back since start
  Counter<uint64_t> purge_calls{0};  // system calls for it
  Counter<uint64_t> huge_live{0};    // bytes of live huge objects, which are in none of the others
  // Bytes of new huge objects where one of before, in the same block, had pages that were purged since.
  Counter<uint64_t> huge_refilled{0};
};

extern PageCounts page_counts;

inline void count_resident(int64_t bytes) { page_counts.resident.add(bytes); }
inline void count_dirty(int64_t bytes, bool large = false) {
  page_counts.dirty.add(bytes);
  if (large) page_counts.dirty_large.add(bytes);
}

inline void count_huge_refilled(size_t bytes_before, size_t bytes, size_t touched_bytes) {
  const size_t again = bytes_before < bytes ? bytes_before : bytes;
  if (again > touched_bytes) page_counts.huge_refilled.add(again - touched_bytes);
}

// Of the pages of bins a purge takes no more than this by one call, so that none holds the kernel's lock on the
// process's memory for long. But a cluster that is or shall be a huge page goes by one.
inline constexpr size_t kPurgeRunBytes = size_t{256} << 10;

// Whether half of some pages are zeros: one somewhere in each sixteenth, of 16 pages and more. Reads them, so none
// becomes resident.
bool looks_sparse(const char* start, size_t bytes);

// Makes a range whose pages may be resident read as zero: below kZeroByPurge by clearing it, else by purging it.
// Measured (64 KiB to 64 MiB, 4 KiB pages, Linux 6.18): where the program then uses all of the range, clearing costs
// 1/20 of purging and faulting while the range fits into a cache, 1/3 to 1/7 above; where it uses every 16th page, the
// same. So only large ranges are purged, where a sparse array's pages weigh more. Rejected: mincore, to ask which pages
// are resident: sandboxes kill a process for it.
inline constexpr size_t kZeroByPurge = size_t{16} << 20;
void zero_pages(char* start, size_t bytes);

// Purges, and counts the bytes, but for those known to be absent. False if the kernel refuses, as of pages that the
// program has locked.
bool purge_pages(void* address, size_t bytes, size_t absent_bytes = 0);

// The same for up to 64 ranges of pages that are there; returns a bit for each that is gone. By one system call for all
// where there is a housekeeper: 64 single pages in a row of holes then cost 0.75 us each in place of 2, and 1.1 in
// place of 3.2 beside a thread on another CPU (Linux 6.18). Not in a program of one thread, as sandboxes may kill it
// for a call that they do not know.
uint64_t purge_ranges(const os::PageRange* ranges, unsigned count);

}  // namespace folio
