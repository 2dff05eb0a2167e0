// glibc's own additions to the family, with real figures. Only in the variants that override, and only on glibc.
#include <stdio.h>
#include <string.h>

#if defined(__GLIBC__)
#include <errno.h>
#include <malloc.h>

#include "base/text.h"
#include "core/give_back.h"
#include "diag/stats.h"
#include "os/os.h"
#include "space/huge.h"

#define FOLIO_EXPORT extern "C" [[gnu::visibility("default")]]

using namespace folio;

// arena, fordblks and keepcost speak of resident bytes; huge objects are what glibc would have mapped.
FOLIO_EXPORT struct mallinfo2 mallinfo2(void) noexcept {
  const Totals t = totals();
  struct mallinfo2 info = {};
  info.arena = t.resident > t.huge_live ? t.resident - t.huge_live : 0;
  info.ordblks = t.chunks;
  info.hblks = huge_live_count();
  info.hblkhd = t.huge_live;
  info.uordblks = t.live - t.huge_live;
  info.fsmblks = t.cached;
  info.fordblks = info.arena > info.uordblks ? info.arena - info.uordblks : 0;
  info.keepcost = t.dirty;
  return info;
}

namespace {

int clamp(size_t n) { return n > 0x7fffffff ? 0x7fffffff : static_cast<int>(n); }

}  // namespace

// Fields of int: what is larger shows as INT_MAX. Programs should call mallinfo2.
FOLIO_EXPORT struct mallinfo mallinfo(void) noexcept {
  const struct mallinfo2 all = mallinfo2();
  struct mallinfo info = {};
  info.arena = clamp(all.arena);
  info.ordblks = clamp(all.ordblks);
  info.hblks = clamp(all.hblks);
  info.hblkhd = clamp(all.hblkhd);
  info.uordblks = clamp(all.uordblks);
  info.fsmblks = clamp(all.fsmblks);
  info.fordblks = clamp(all.fordblks);
  info.keepcost = clamp(all.keepcost);
  return info;
}

FOLIO_EXPORT void malloc_stats(void) noexcept { print_at_exit(); }

// 1 if memory went back to the kernel. The argument speaks of a heap top that Folio does not have.
FOLIO_EXPORT int malloc_trim(size_t) noexcept { return collect_everything("malloc_trim") != 0 ? 1 : 0; }

// Folio needs no tuning of this kind: every parameter is accepted and ignored, as glibc does with those it knows.
FOLIO_EXPORT int mallopt(int, int) noexcept { return 1; }

// glibc's schema: one heap, its bins as sizes, totals.
FOLIO_EXPORT int malloc_info(int options, FILE* fp) noexcept {
  if (options != 0) return EINVAL;  // as glibc does, not as its manual says
  const InThreads in_threads;
  const Totals t = totals(in_threads);
  Text text;
  text << "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n";
  fwrite(text.data(), 1, text.length(), fp);
  for (unsigned i = 1; i < kBins; ++i) {
    const BinStats s = bin_stats(bin_id(i), in_threads);
    const uint64_t size = info_of(bin_id(i)).size;
    if (s.cached == 0) continue;
    text.clear();
    text << "  <size from=\"" << size << "\" to=\"" << size << "\" total=\"" << s.cached * size << "\" count=\""
         << s.cached << "\"/>\n";
    fwrite(text.data(), 1, text.length(), fp);
  }
  const uint64_t rest = t.fragmented + t.dirty;
  text.clear();
  text << "</sizes>\n<total type=\"fast\" count=\"0\" size=\"" << t.cached
       << "\"/>\n<total type=\"rest\" count=\"0\" size=\"" << rest << "\"/>\n<system type=\"current\" size=\""
       << t.resident << "\"/>\n<system type=\"max\" size=\"" << t.reserved << "\"/>\n<aspace type=\"total\" size=\""
       << t.reserved << "\"/>\n<aspace type=\"mprotect\" size=\"" << t.reserved << "\"/>\n</heap>\n";
  text << "<total type=\"fast\" count=\"0\" size=\"" << t.cached << "\"/>\n<total type=\"rest\" count=\"0\" size=\""
       << rest << "\"/>\n<total type=\"mmap\" count=\"0\" size=\"" << t.huge_live << "\"/>\n";
  fwrite(text.data(), 1, text.length(), fp);
  text.clear();
  text << "<system type=\"current\" size=\"" << t.resident << "\"/>\n<system type=\"max\" size=\"" << t.reserved
       << "\"/>\n<aspace type=\"total\" size=\"" << t.reserved << "\"/>\n<aspace type=\"mprotect\" size=\""
       << t.reserved << "\"/>\n</malloc>\n";
  fwrite(text.data(), 1, text.length(), fp);
  return 0;
}
#endif
