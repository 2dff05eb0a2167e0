// Clears and purges ranges of pages, and counts what was purged.
#include "space/pages.h"

#include "base/bits.h"
#include "config/options.h"
#include "os/os.h"
#include "space/housekeeper.h"

namespace folio {

alignas(64) constinit PageCounts page_counts;

bool looks_sparse(const char* start, size_t bytes) {
  constexpr uint64_t kLooks = 16, kGolden = 0x9E3779B97F4A7C15;
  const size_t step = bytes / kLooks, page = os::page_bytes();
  unsigned zeros = 0;
  for (unsigned i = 0; i < kLooks; ++i) {
    // Not at even distances: an array of 16, 32 or 64 equal parts may have a header in each.
    const char* const at = start + i * step + round_down((step - page) * (i * kGolden >> 48) >> 16, page);
    zeros += *at == 0 && __builtin_memcmp(at, at + 1, page - 1) == 0 ? 1 : 0;
  }
  return zeros >= kLooks / 2;
}

void zero_pages(char* start, size_t bytes) {
  const size_t page = os::page_bytes();
  auto* const first = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(start), page));
  auto* const end = reinterpret_cast<char*>(round_down(reinterpret_cast<uintptr_t>(start + bytes), page));
  if (bytes < kZeroByPurge || !purge_pages(first, static_cast<size_t>(end - first))) {
    __builtin_memset(start, 0, bytes);
    return;
  }
  __builtin_memset(start, 0, static_cast<size_t>(first - start));
  __builtin_memset(end, 0, static_cast<size_t>(start + bytes - end));
}

bool purge_pages(void* address, size_t bytes, size_t absent_bytes) {
  if (bytes == 0) return true;
  page_counts.purge_calls.add(1);
  if (!os::purge(address, bytes)) return false;
  page_counts.purged.add(bytes - absent_bytes);
  return true;
}

uint64_t purge_ranges(const os::PageRange* ranges, unsigned count) {
  unsigned done = 0;
  if (count > 1 && in_housekeeper) {
    done = os::purge_some(ranges, count);
    page_counts.purge_calls.add(done != 0 ? 1 : 0);
    size_t bytes = 0;
    for (unsigned i = 0; i < done; ++i) bytes += ranges[i].bytes;
    page_counts.purged.add(bytes);
  }
  uint64_t gone = low_mask(done);
  for (unsigned i = done; i < count; ++i) {
    if (purge_pages(ranges[i].start, ranges[i].bytes)) gone |= uint64_t{1} << i;
  }
  return gone;
}

}  // namespace folio
