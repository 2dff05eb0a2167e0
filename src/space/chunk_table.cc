// The table's storage and page protection, and the two-level map to descriptors.
#include "space/chunk_table.h"

#include "os/os.h"
#include "space/metadata.h"

namespace folio {

#if defined(FOLIO_TABLE_READ_ONLY)
// A shared library has the table in a segment of its own, zero-filled and readable only, as which the loader maps it
// (cmake/Libraries.cmake: where it does). By assembly, since a compiler's sections of zeros are writable.
namespace {
constexpr bool kLoadedReadOnly = true;

[[gnu::used, gnu::noinline, gnu::cold]] void place_table() {
  asm(R"(
    .pushsection .folio_table, "a", %%nobits
    .balign 65536
    .globl folio_chunk_table
    .hidden folio_chunk_table
    .type folio_chunk_table, %%object
    .size folio_chunk_table, %c0
  folio_chunk_table:
    .zero %c0
    .popsection)"
      :
      : "i"(sizeof chunk_table));
}
}  // namespace
#else
// Elsewhere it is ordinary zero-filled data until chunk_table_close.
namespace {
constexpr bool kLoadedReadOnly = false;
}
alignas(kTableStepBytes) constinit uint16_t chunk_table[kChunkTableEntries] = {};
#endif

constinit Atomic<Window*> windows[kWindows];

namespace {

constexpr size_t kTableSteps = sizeof chunk_table / kTableStepBytes;
constinit Atomic<uint64_t> open_steps[kTableSteps / 64];

char* step_at(size_t step) { return reinterpret_cast<char*>(chunk_table) + step * kTableStepBytes; }
size_t step_of(const char* address) {
  return (reinterpret_cast<uintptr_t>(address) >> kChunkShift) % kChunkTableEntries * sizeof chunk_table[0] /
         kTableStepBytes;
}

bool is_open(size_t step) {
  // [commit] acquire: after the kernel has made it writable; pairs with chunk_table_open.
  return (open_steps[step / 64].load(order::acquire) >> step % 64 & 1) != 0;
}

}  // namespace

bool chunk_table_open(const void* start, size_t bytes) {
  constexpr size_t kSpan = kTableStepBytes / sizeof chunk_table[0] * kChunkBytes;
  const auto* const first = static_cast<const char*>(start);
  for (const char* at = first; at < first + bytes; at += kSpan - reinterpret_cast<uintptr_t>(at) % kSpan) {
    const size_t step = step_of(at);
    if (is_open(step)) continue;
    if (!os::commit(step_at(step), kTableStepBytes)) return false;
    // [commit] release: who sees the bit may write there; pairs with is_open.
    open_steps[step / 64].fetch_or(uint64_t{1} << step % 64, order::release);
  }
  return true;
}

void chunk_table_close() {
  if (kLoadedReadOnly || os::thread_total() != 1) return;
  for (size_t from = 0, to; from < kTableSteps; from = to + 1) {
    for (to = from; to < kTableSteps && !is_open(to);) ++to;
    if (to != from) os::protect(step_at(from), (to - from) * kTableStepBytes);
  }
}

Window* window_make(const void* address) {
  const uint64_t number = window_number(address);
  Atomic<Window*>& entry = windows[number % kWindows];
  if (entry.load(order::relaxed) == nullptr) {  // relaxed: a glance
    auto* fresh = static_cast<Window*>(metadata_alloc(sizeof(Window)));
    if (fresh == nullptr) return nullptr;
    fresh->number = number;
    Window* found = nullptr;
    // [window] release: publishes the number; pairs with window_at. The loser of a race loses 32 KiB of untouched
    // metadata.
    if (entry.compare_exchange(found, fresh, order::release)) return fresh;
  }
  return window_at(number);
}

bool windows_have_room(const void* start, size_t bytes) {
  const uint64_t last = window_number(static_cast<const char*>(start) + bytes - 1);
  for (uint64_t number = window_number(start); number <= last; ++number) {
    // [window] acquire: sees its number; pairs with window_make
    const Window* const window = windows[number % kWindows].load(order::acquire);
    if (window != nullptr && window->number != number) return false;
  }
  return true;
}

}  // namespace folio
