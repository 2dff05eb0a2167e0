// Sums up live, cached, fragmented and dirty bytes by walking bins and caches, and writes them as text or JSON.
#include "diag/stats.h"

#include "base/text.h"
#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_caches.h"
#include "insight/guards.h"
#include "os/os.h"
#include "space/chunks.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/metadata.h"
#include "space/pages.h"
#include "space/region.h"
#include "store/occupancy.h"
#include "store/residency.h"

namespace folio {

namespace {

void add_chunk(Descriptor& d, BinStats& s) {
  ++s.chunks;
  // Relaxed, all of them: a picture of a moving thing.
  for (unsigned folio = 0; folio < d.info().folios; ++folio) {
    s.taken += popcount(d.occupancy(folio).load(order::relaxed));  // relaxed: see above
  }
  for (unsigned w = 0; w < kPageWords; ++w) {
    s.resident += uint64_t{popcount(d.resident(w).load(order::relaxed))} * os::page_bytes();  // relaxed: see above
    s.dirty += uint64_t{popcount(d.dirty(w).load(order::relaxed))} * os::page_bytes();        // relaxed: see above
  }
}

}  // namespace

InThreads::InThreads() { thread_caches_objects(objects); }

BinStats bin_stats(BinId bin, const InThreads& in_threads) {
  BinStats s{};
  visit_chunks(process_store, bin, [&](Descriptor& d) {
    add_chunk(d, s);
    return true;
  });
  s.cached = depot_objects(process_caches.depot, bin) + cpu_caches_objects(process_caches, bin) +
             in_threads.objects[index(bin)];
  return s;
}

Totals totals(const InThreads& in_threads) {
  Totals t{};
  for (unsigned i = 1; i < kBins; ++i) {
    const BinStats s = bin_stats(bin_id(i), in_threads);
    const uint64_t size = info_of(bin_id(i)).size;
    const uint64_t cached = s.cached < s.taken ? s.cached : s.taken;
    t.live += (s.taken - cached) * size;
    t.cached += cached * size;
    t.dirty += s.dirty;
    const uint64_t held = s.taken * size + s.dirty;
    if (s.resident > held) t.fragmented += s.resident - held;
  }
  const LargeStats large = large_stats(process_fields);
  t.live += large.taken;
  t.cached += large.parked;
  t.dirty += large.dirty;
  t.live += guard_stats().bytes;
  t.huge_live = huge_live_bytes();
  t.live += t.huge_live;
  const int64_t resident = page_counts.resident.get();
  t.resident = (resident > 0 ? static_cast<uint64_t>(resident) : 0) + t.huge_live;
  const int64_t dirty = page_counts.dirty.get();
  if (dirty > static_cast<int64_t>(t.dirty)) t.dirty = static_cast<uint64_t>(dirty);
  t.metadata = metadata_bytes();
  t.reserved = region_bytes() + large.reserved + huge_reserved_bytes();
  t.chunks = chunks_in_use();
  t.threads = thread_count();
  t.purged = page_counts.purged.get();
  t.purge_calls = page_counts.purge_calls.get();
  t.busy_sections = cpu_caches_busy(process_caches);
  return t;
}

namespace {

void flush(Text& text, Write* write, void* context) {
  write(context, text.data(), text.length());
  text.clear();
}

// Which process it is: several may write to one file.
struct Program {
  Program() : length(os::program_path(path, sizeof path)) {}
  char path[400];
  size_t length;
};

// One line of ASCII; of a long path the end.
void put_process(Text& text) {
  constexpr size_t kMost = 70;
  const Program program;
  text << "  process " << uint64_t{os::process_id()};
  if (program.length != 0) text << (program.length > kMost ? ": ..." : ": ");
  for (size_t i = program.length > kMost ? program.length - kMost : 0; i < program.length; ++i) {
    const char c = program.path[i];
    text.put(c >= ' ' && c <= '~' ? c : '?');
  }
  text << "\n";
}

// As JSON escapes it in a string.
void put_escaped(Text& text, char c) {
  const auto code = static_cast<unsigned char>(c);
  if (code < ' ') {
    text << "\\u00";
    text.put("01"[code >> 4]);
    c = "0123456789abcdef"[code & 15];
  } else if (c == '"' || c == '\\') {
    text.put('\\');
  }
  text.put(c);
}

void write_program(Text& text, Write* write, void* context) {
  const Program program;
  text << ",\"pid\":" << uint64_t{os::process_id()} << ",\"program\":\"";
  for (size_t i = 0; i < program.length; ++i) {
    put_escaped(text, program.path[i]);
    if (i % 100 == 99) flush(text, write, context);  // so that it all fits
  }
  text.put('"');
  flush(text, write, context);
}

void put_line(Text& text, const char* what, uint64_t bytes, const char* note) {
  text << "  " << what;
  text.column(bytes >> 10, 12) << " KiB  " << note << "\n";
}

void write_bins(const InThreads& in_threads, Text& text, Write* write, void* context) {
  text << "  largest bins    size      chunks        live      cached    dirty KiB\n";
  bool shown[kBins] = {};
  for (unsigned row = 0; row < 8; ++row) {
    unsigned best = 0;
    uint64_t most = 0;
    for (unsigned i = 1; i < kBins; ++i) {
      const uint64_t bytes = bin_stats(bin_id(i), in_threads).taken * info_of(bin_id(i)).size;
      if (!shown[i] && bytes > most) {
        most = bytes;
        best = i;
      }
    }
    if (best == 0) break;
    shown[best] = true;
    const BinStats s = bin_stats(bin_id(best), in_threads);
    text << "        bin";
    text.column(best, 4).column(info_of(bin_id(best)).size, 9).column(s.chunks, 12);
    text.column(s.taken - (s.cached < s.taken ? s.cached : s.taken), 12).column(s.cached, 12).column(s.dirty >> 10, 13)
        << "\n";
    flush(text, write, context);
  }
}

}  // namespace

void write_text(Write* write, void* context) {
  const InThreads in_threads;
  const Totals t = totals(in_threads);
  Text text;
  text << "folio: statistics\n";
  put_process(text);
  put_line(text, "live        ", t.live, "in objects that the program holds");
  put_line(text, "cached      ", t.cached, "in thread caches, CPU caches and depot");
  put_line(text, "fragmented  ", t.fragmented, "free, on pages that taken objects keep");
  put_line(text, "dirty       ", t.dirty, "free and waiting to be purged");
  put_line(text, "metadata    ", t.metadata, "Folio's own");
  const size_t resident = os::resident_bytes();  // 0 without /proc
  if (resident != 0) put_line(text, "process RSS ", resident, "all of it, also what is not Folio's");
  put_line(text, "reserved    ", t.reserved, "address space for chunks, large and huge objects");
  flush(text, write, context);
  text << "  " << t.chunks << " chunks, " << t.threads << " threads; " << (t.purged >> 10) << " KiB purged in "
       << t.purge_calls << " calls; " << t.busy_sections << " busy CPU-cache sections\n";
  write_bins(in_threads, text, write, context);
  text << "  next: docs/options.md explains what can be tuned, docs/limits.md what bounds each line\n";
  flush(text, write, context);
}

void write_json(Write* write, void* context) {
  const InThreads in_threads;
  const Totals t = totals(in_threads);
  Text text;
  text << "{\"version\":1,\"live\":" << t.live << ",\"cached\":" << t.cached << ",\"fragmented\":" << t.fragmented
       << ",\"dirty\":" << t.dirty << ",\"resident\":" << t.resident << ",\"huge_live\":" << t.huge_live
       << ",\"metadata\":" << t.metadata << ",\"reserved\":" << t.reserved << ",\"chunks\":" << t.chunks
       << ",\"threads\":" << t.threads << ",\"purged\":" << t.purged << ",\"purge_calls\":" << t.purge_calls
       << ",\"busy_sections\":" << t.busy_sections << ",\"process_rss\":" << uint64_t{os::resident_bytes()};
  flush(text, write, context);
  write_program(text, write, context);
  text << ",\"bins\":[";
  flush(text, write, context);
  bool first = true;
  for (unsigned i = 1; i < kBins; ++i) {
    const BinStats s = bin_stats(bin_id(i), in_threads);
    if (s.chunks == 0) continue;
    text << (first ? "" : ",") << "{\"bin\":" << uint64_t{i} << ",\"size\":" << uint64_t{info_of(bin_id(i)).size}
         << ",\"chunks\":" << s.chunks << ",\"taken\":" << s.taken << ",\"cached\":" << s.cached
         << ",\"resident\":" << s.resident << ",\"dirty\":" << s.dirty << "}";
    first = false;
    flush(text, write, context);
  }
  const LargeStats large = large_stats(process_fields);
  text << "],\"large\":{\"objects\":" << large.objects << ",\"taken\":" << large.taken << ",\"cached\":" << large.parked
       << ",\"resident\":" << large.resident << ",\"dirty\":" << large.dirty << "}}\n";
  flush(text, write, context);
}

void print_at_exit() {
  write_text([](void*, const char* text, size_t length) { os::write_error(text, length); }, nullptr);
}

}  // namespace folio
