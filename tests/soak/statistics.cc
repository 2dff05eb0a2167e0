// The ninth thread: asks for statistics all the time, checks that what it is told is possible, and gives memory back
// now and then.
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <folio/folio.h>

#include "objects.h"

namespace soak {

namespace {

template <typename Function>
Function* found(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}
const auto stats_get = found<decltype(folio_stats_get)>("folio_stats_get");
const auto stats_text = found<decltype(folio_stats_text)>("folio_stats_text");
const auto stats_json = found<decltype(folio_stats_json)>("folio_stats_json");
const auto collect = found<decltype(folio_collect)>("folio_collect");

// What statistics may say of objects that the program holds: what it may hold and the rounding of sizes, and what is
// just moving between caches, or was lost with a thread whose end nobody tells.
size_t live_most() {
  const size_t held = kWorkers * settings.worker_bytes + settings.queued_bytes;
  return held + held / 4 + (size_t{96} << 20) + unreported_ends.load(std::memory_order_relaxed) * (64 << 10);
}

void check_live(const char* who, size_t live) {
  if (live > live_most()) fail("statistics: %s says that %zu bytes are live; at most %zu are", who, live, live_most());
}

constexpr size_t kAbsurd = size_t{1} << 40;
constexpr size_t kChunkBytes = size_t{2} << 20;

void check_mallinfo() {
  const struct mallinfo2 info = mallinfo2();
  check_live("mallinfo2", info.uordblks);
  for (const size_t each : {info.arena, info.hblkhd, info.fordblks, info.keepcost, info.fsmblks}) {
    if (each > kAbsurd) fail("statistics: mallinfo2 says %zu bytes", each);
  }
}

void check_stats() {
  static folio_stats before;
  folio_stats now = {};
  now.struct_size = sizeof now;
  if (stats_get == nullptr || !stats_get(&now)) return;
  check_live("folio_stats_get", now.live);
  for (const size_t each : {now.cached, now.fragmented, now.dirty, now.resident, now.metadata, now.reserved}) {
    if (each > kAbsurd) fail("statistics: folio_stats_get says %zu bytes", each);
  }
  if (now.purged < before.purged || now.purge_calls < before.purge_calls) {
    fail("statistics: what only grows has fallen: purged %lu, then %lu; calls %lu, then %lu", before.purged, now.purged,
         before.purge_calls, now.purge_calls);
  }
  // Bins inherit each other's: they need no more than all of them at their own peaks.
  const size_t chunks_most = 64 + 4 * (live_most() / kChunkBytes);
  if (now.chunks > chunks_most) fail("statistics: %zu chunks, at most %zu are plausible", now.chunks, chunks_most);
  if (now.huge_live > now.live) fail("statistics: huge_live %zu is more than live %zu", now.huge_live, now.live);
  if (now.threads > 100 + unreported_ends.load(std::memory_order_relaxed)) fail("statistics: %zu threads", now.threads);
  before = now;
}

struct Buffer {
  char text[256 << 10];
  size_t length;
};
Buffer buffer;

void append(void*, const char* text, size_t length) {
  if (buffer.length + length > sizeof buffer.text) fail("statistics: more than %zu bytes of text", sizeof buffer.text);
  memcpy(buffer.text + buffer.length, text, length);
  buffer.length += length;
}

void check_text(bool json) {
  buffer.length = 0;
  const auto write = json ? stats_json : stats_text;
  if (write == nullptr) return;
  write(append, nullptr);
  const char* const start = json ? "{\"version\":1,\"live\":" : "folio: statistics\n";
  if (buffer.length < 100 || memcmp(buffer.text, start, strlen(start)) != 0 || buffer.text[buffer.length - 1] != '\n') {
    fail("statistics: %zu bytes of text that is not whole: %.60s", buffer.length, buffer.text);
  }
  if (json) check_live("folio_stats_json", strtoull(buffer.text + strlen(start), nullptr, 10));
}

void check_malloc_info(FILE* nowhere, bool read) {
  if (!read) {
    if (malloc_info(0, nowhere) != 0) fail("malloc_info failed");
    return;
  }
  char* text = nullptr;
  size_t length = 0;
  FILE* const stream = open_memstream(&text, &length);
  if (stream == nullptr || malloc_info(0, stream) != 0) fail("malloc_info failed");
  fclose(stream);
  if (length < 50 || strncmp(text, "<malloc version=", 16) != 0 || strcmp(text + length - 10, "</malloc>\n") != 0) {
    fail("malloc_info: not whole: %.60s", text);
  }
  free(text);
}

void check_own_objects(Random& random) {
  for (unsigned i = 0; i < 20; ++i) {
    Object o = make(random, small_size(random), counts[kAsker]);
    // Of a rounded size, not of a neighbour's: no bin is twice as large as the one before it.
    const size_t usable = malloc_usable_size(o.at);
    if (stats_get != nullptr && o.kind == Kind::kPlain && usable > 2 * o.size + 8) {
      fail("malloc_usable_size: %zu of %zu bytes", usable, o.size);
    }
    release(random, o, counts[kAsker]);
  }
}

void give_back(Random& random) {
  if (!settings.with[kCollect]) return;
  if (collect != nullptr && random.one_in(2)) {
    const size_t bytes = collect();
    if (bytes > kAbsurd) fail("folio_collect: %zu bytes", bytes);
  } else {
    malloc_trim(0);
  }
}

}  // namespace

void ask() {
  Random random(settings.seed, 103);
  FILE* const nowhere = fopen("/dev/null", "w");
  if (nowhere == nullptr) fail("/dev/null cannot be opened");
  for (;;) {
    if (should_rest()) rest(nullptr, 0);
    check_own_objects(random);
    const size_t kind = random.below(1000);
    if (settings.with[kStatistics]) {
      if (kind < 400) check_mallinfo();
      if (kind >= 400 && kind < 700) check_stats();
      if (kind >= 700 && kind < 900) check_text(kind < 800);
      if (kind >= 900 && kind < 990) check_malloc_info(nowhere, kind < 940);
      if (kind >= 996) malloc_stats();
    }
    if (kind >= 990 && kind < 996) give_back(random);
    counts[kAsker].steps.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace soak
