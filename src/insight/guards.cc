// Keeps the slots: claims one, opens its page, closes it. The reports are in guards_report.cc.
#include "insight/guards.h"

#include "arch/arch.h"
#include "base/bits.h"
#include "os/os.h"
#include "os/report.h"
#include "space/chunk_table.h"
#include "space/chunks.h"
#include "space/metadata.h"
#include "space/pages.h"
#include "space/region.h"
#include "space/room.h"

namespace folio {

constinit Atomic<GuardPool*> guard_pool{nullptr};
constinit Hint<uint64_t> guard_interval{0};
constinit Counter<uint64_t> guard_frees{0};
__thread Countdown guard_countdown;

namespace {

constexpr uint32_t kSetting = 1;         // of the countdown: the interval never changes
constexpr unsigned char kBeside = 0xb7;  // what lies beside an object on its page

// ---- The start ----

// Whether the kernel makes a page inaccessible by advice. Emulators accept the advice and ignore it, so this tries.
bool advice_works(char* page, size_t bytes) {
  const auto* const word = reinterpret_cast<void* const*>(page);
  return os::install_guard(page, bytes) && os::word_is(word, nullptr) == os::Answer::kNotThere;
}

// The first page is tried alone: in locked memory, committing the whole cluster would make all of its pages resident.
bool close_by_advice(const GuardPool& pool) {
  if (!os::commit(pool.chunk, pool.page_bytes)) return false;
  const bool works = advice_works(pool.chunk, pool.page_bytes) && os::commit(pool.chunk, kClusterBytes);
  if (works && os::install_guard(pool.chunk, kClusterBytes)) return true;
  os::forbid(pool.chunk, kClusterBytes);
  os::purge(pool.chunk, kClusterBytes);
  return false;
}

GuardPool* make_pool() {
  auto* const pool = static_cast<GuardPool*>(metadata_alloc(sizeof(GuardPool)));
  if (pool == nullptr) return nullptr;
  pool->chunk = carve_cluster();
  Window* const window = pool->chunk == nullptr ? nullptr : window_make(pool->chunk);
  if (window == nullptr || !chunk_table_open(pool->chunk, kClusterBytes)) {
    if (pool->chunk != nullptr) uncarve_cluster(pool->chunk);
    return nullptr;
  }
  pool->page_bytes = os::page_bytes();
  const size_t slots = (kClusterBytes / pool->page_bytes - 1) / 2;
  pool->slots = static_cast<uint32_t>(slots < kGuardSlotsMost ? slots : kGuardSlotsMost);
  pool->live_most = pool->slots - pool->slots / 4;
  pool->by_advice = close_by_advice(*pool);
  for (unsigned i = 0; i < pool->slots; ++i) pool->slot[i].forbidden = !pool->by_advice;
  for (unsigned i = 0; i < kClusterChunks; ++i) set_chunk(window, pool->chunk + i * kChunkBytes, pool, kCodeGuarded);
  return pool;
}

// ---- Slots ----

bool open_page(GuardPool& pool, unsigned number) {
  char* const page = pool.page(number);
  return pool.slot[number].forbidden ? os::commit(page, pool.page_bytes) : os::remove_guard(page, pool.page_bytes);
}

void close_page(GuardPool& pool, unsigned number) {
  GuardSlot& slot = pool.slot[number];
  char* const page = pool.page(number);
  slot.forbidden = !pool.by_advice || !os::install_guard(page, pool.page_bytes);
  slot.dirty = false;
  if (!slot.forbidden) return;
  // Where the kernel refuses, for want of a mapping or since the page is locked, the slot can be used all the same.
  os::forbid(page, pool.page_bytes);
  slot.dirty = !os::purge(page, pool.page_bytes);
}

// Of the free slots the one that was freed first; false if too many are taken. *was: its mark.
bool claim(GuardPool& pool, unsigned* number, uint64_t* was) {
  for (;;) {
    unsigned taken = 0;
    *was = ~uint64_t{0};
    for (unsigned i = 0; i < pool.slots; ++i) {
      const uint64_t mark = pool.mark[i].load(order::relaxed);  // relaxed: the claim checks it
      if ((mark & 3) != kGuardFree) {
        ++taken;
      } else if (mark < *was) {
        *was = mark;
        *number = i;
      }
    }
    if (taken >= pool.live_most || *was == ~uint64_t{0}) return false;
    uint64_t expected = *was;
    // [guard] acquire: sees what whoever freed it has written; pairs with guard_give. unseen: the explorer has no
    // scenario of guards, whose pages only the kernel closes
    if (pool.mark[*number].compare_exchange(expected, *was | kGuardBusy, order::acquire)) return true;
  }
}

size_t place_on_page(size_t size, size_t alignment, size_t page_bytes) {
  const size_t natural = size > 8 ? 16 : 8;
  if ((guard_countdown.random >> 32) % 4 == 0) return 0;
  return round_down(page_bytes - (size != 0 ? size : 1), alignment > natural ? alignment : natural);
}

void note_call(GuardCall& call) {
  call.ms = os::now_ms();
  call.thread = os::thread_id();
  take_frames(call.frames);
}

bool is_as_written(const unsigned char* from, size_t bytes) {
  return bytes == 0 || (from[0] == kBeside && __builtin_memcmp(from, from + 1, bytes - 1) == 0);
}

// The nearest byte behind an object, else before it, that is not what guard_allocate has written there; or null.
const unsigned char* overwritten(const GuardPool& pool, const GuardPlace& place) {
  const auto* const page = reinterpret_cast<unsigned char*>(pool.page(place.number));
  const auto* const start = reinterpret_cast<unsigned char*>(place.base);
  const auto* at = start + place.size;
  if (!is_as_written(at, static_cast<size_t>(page + pool.page_bytes - at))) {
    while (*at == kBeside) ++at;
    return at;
  }
  if (is_as_written(page, static_cast<size_t>(start - page))) return nullptr;
  for (at = start - 1; *at == kBeside;) --at;
  return at;
}

}  // namespace

bool guards_start(uint64_t interval) {
  GuardPool* const pool = make_pool();
  if (pool == nullptr) {
    Text line;
    line << "folio: guard: no address space or metadata for guarded objects, so there are none (see docs/options.md)";
    write_line(line);
    return false;
  }
  learn_program_path();
  // [guard] release: after all of the pool; pairs with guard_place and guard_allocate. unseen: as in claim
  guard_pool.store(pool, order::release);
  os::on_fault(report_guard_fault);
  guard_interval.set(interval);
  return true;
}

void* guard_allocate(size_t size, size_t alignment, bool zeroed) {
  const uint64_t interval = guard_interval.get();
  if (interval == 0 || size > PTRDIFF_MAX || !guard_countdown.ends(size, interval, kSetting)) return nullptr;
  GuardPool* const pool =
      guard_pool.load(order::acquire);  // [guard] acquire: pairs with guards_start. unseen: as there
  if (pool == nullptr || size > pool->page_bytes || alignment > pool->page_bytes) return nullptr;
  unsigned number;
  uint64_t was;
  if (!has_room(pool->page_bytes) || !claim(*pool, &number, &was)) return nullptr;
  if (!open_page(*pool, number)) {
    pool->mark[number].store(was, order::relaxed);  // relaxed: nothing was written
    return nullptr;
  }
  GuardSlot& slot = pool->slot[number];
  char* const page = pool->page(number);
  const size_t place = place_on_page(size, alignment, pool->page_bytes);
  __builtin_memset(page, kBeside, place);
  __builtin_memset(page + place + size, kBeside, pool->page_bytes - place - size);
  if (zeroed && slot.dirty) __builtin_memset(page + place, 0, size);
  if (!slot.dirty) count_resident(static_cast<int64_t>(pool->page_bytes));
  slot.object.set(page + place);
  slot.size.set(size);
  slot.seen = false;
  slot.reported.set(false);
  slot.freed.thread = 0;
  note_call(slot.allocated);
  // [guard] release: a report that finds it live finds all of it; pairs with guard_place. unseen: as in claim
  pool->mark[number].store((was & ~uint64_t{3}) | kGuardLive, order::release);
  arch::store_barrier();
  return page + place;
}

GuardPlace guard_place(const void* address) {
  GuardPool* const pool =
      guard_pool.load(order::acquire);  // [guard] acquire: pairs with guards_start. unseen: as there
  GuardPlace place{};
  if (pool == nullptr || cluster_start(static_cast<const char*>(address)) != pool->chunk) return place;
  const auto page = static_cast<size_t>(static_cast<const char*>(address) - pool->chunk) / pool->page_bytes;
  if (page % 2 == 0 || page / 2 >= pool->slots) return place;
  place.number = static_cast<unsigned>(page / 2);
  // [guard] acquire: sees what there is of the object; pairs with guard_allocate and guard_give. unseen: as in claim
  place.mark = pool->mark[place.number].load(order::acquire);
  place.base = pool->slot[place.number].object.get();
  place.size = pool->slot[place.number].size.get();
  if (place.base != nullptr) place.slot = &pool->slot[place.number];
  return place;
}

GuardPlace guard_find(const void* object, const char* function) {
  GuardPlace place = guard_place(object);
  if (place.slot != nullptr && place.live() && place.base == object) return place;
  report_guarded(object, place, function);
  place.slot = nullptr;
  return place;
}

bool guard_park(void* object, const char* function, bool* seen) {
  GuardPlace place = guard_find(object, function);
  if (place.slot == nullptr) return false;
  GuardPool& pool = *guard_pool.load(order::relaxed);  // relaxed: guard_find has seen it
  uint64_t expected = place.mark;
  // [guard] acquire: of two frees one has it; pairs with guard_allocate. unseen: as in claim
  if (!pool.mark[place.number].compare_exchange(expected, place.mark ^ kGuardLive ^ kGuardBusy, order::acquire)) {
    report_guarded(object, guard_place(object), function);
    return false;
  }
  note_call(place.slot->freed);
  *seen = place.slot->seen;
  if (const auto* const at = overwritten(pool, place)) report_guard_overwritten(at, place, function);
  return true;
}

void guard_give(void* parked) {
  const unsigned number = guard_place(parked).number;
  GuardPool& pool = *guard_pool.load(order::relaxed);  // relaxed: as above
  close_page(pool, number);
  if (!pool.slot[number].dirty) count_resident(-static_cast<int64_t>(pool.page_bytes));
  // [guard] release: after its page is closed; pairs with claim and guard_place. unseen: as in claim
  pool.mark[number].store((guard_frees.add(1) + 1) << 2 | kGuardFree, order::release);
}

bool guard_mark_seen(const void* object, bool seen) {
  const GuardPlace place = guard_place(object);
  if (place.slot == nullptr || !place.live() || place.base != object) return false;
  const bool was = place.slot->seen;
  place.slot->seen = seen;
  return was;
}

GuardStats guard_stats() {
  GuardStats stats{};
  GuardPool* const pool =
      guard_pool.load(order::acquire);  // [guard] acquire: pairs with guards_start. unseen: as there
  for (unsigned i = 0; pool != nullptr && i < pool->slots; ++i) {
    if ((pool->mark[i].load(order::relaxed) & 3) != kGuardLive) continue;  // relaxed: a picture of a moving thing
    ++stats.objects;
    stats.bytes += pool->slot[i].size.get();
  }
  return stats;
}

}  // namespace folio
