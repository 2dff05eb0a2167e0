// folio.h: the C interface under its own names, in every variant of the library.
#include <errno.h>
#include <folio/folio.h>
#include <stdint.h>
#include <stdlib.h>

#include "config/options.h"
#include "core/clock.h"
#include "core/free.h"
#include "core/give_back.h"
#include "core/ladder.h"
#include "core/lifecycle.h"
#include "core/malloc.h"
#include "core/realloc.h"
#include "core/seam.h"
#include "diag/stats.h"
#include "insight/guards.h"
#include "insight/profile_file.h"
#include "os/os.h"
#include "policy/pressure.h"
#include "space/housekeeper.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/room.h"
#include "store/occupancy.h"

#define FOLIO_TEXT_OF(x) #x
#define FOLIO_TEXT(x) FOLIO_TEXT_OF(x)

namespace folio {

namespace {

// Here, since core/ does not know diag/.
[[gnu::constructor]] void print_when_exiting() {
  start();
  if (options.stats == kStatsExit) atexit(print_at_exit);
}

size_t copy_bytes(size_t theirs, size_t ours) { return theirs < ours ? theirs : ours; }

}  // namespace

}  // namespace folio

using namespace folio;

extern "C" {

void* folio_malloc(size_t size) { return allocate(size); }
void* folio_zalloc(size_t size) { return allocate_zeroed(size); }

void* folio_calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return allocate_zeroed(bytes);
}

void* folio_realloc(void* object, size_t size) { return reallocate_plain(object, size, "folio_realloc"); }

void* folio_reallocarray(void* object, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return reallocate_plain(object, bytes, "folio_reallocarray");
}

void folio_free(void* object) { release(object, "folio_free"); }
void folio_free_sized(void* object, size_t size) { release_sized(object, size, "folio_free_sized"); }
void folio_free_aligned_sized(void* object, size_t, size_t size) {
  release_aligned_sized(object, size, "folio_free_aligned_sized");
}

void* folio_aligned_alloc(size_t alignment, size_t size) {
  if (!is_power_of_two(alignment)) {
    errno = EINVAL;
    return nullptr;
  }
  return allocate_aligned(alignment, size, false);
}

void* folio_aligned_zalloc(size_t alignment, size_t size) {
  if (!is_power_of_two(alignment)) {
    errno = EINVAL;
    return nullptr;
  }
  return allocate_aligned(alignment, size, true);
}

void* folio_aligned_realloc(void* object, size_t alignment, size_t size) {
  if (!is_power_of_two(alignment)) {
    errno = EINVAL;
    return nullptr;
  }
  return reallocate(object, alignment, size, "folio_aligned_realloc");
}

int folio_posix_memalign(void** out, size_t alignment, size_t size) {
  if (!is_power_of_two(alignment) || alignment % sizeof(void*) != 0) return EINVAL;
  const int before = errno;
  void* object = allocate_aligned(alignment, size, false);
  errno = before;
  if (object == nullptr) return ENOMEM;
  *out = object;
  return 0;
}

void* folio_rezalloc(void* object, size_t old_size, size_t size) {
  void* resized = reallocate(object, 1, size, "folio_rezalloc");
  if (object == nullptr) old_size = 0;
  if (resized != nullptr && size > old_size) {
    __builtin_memset(static_cast<char*>(resized) + old_size, 0, size - old_size);
  }
  return resized;
}

bool folio_expand(void* object, size_t size) { return size <= PTRDIFF_MAX && expand(object, size, "folio_expand"); }

size_t folio_good_size(size_t size) {
  if (size <= kMediumMost) return info_of(bin_of(size)).size;
  // Not so much that it would make a huge object.
  if (size <= kLargeMost) return large_good_size(size) < kLargeMost ? large_good_size(size) : kLargeMost;
  return size > PTRDIFF_MAX - (os::page_bytes() - 1) ? 0 : round_up(size, os::page_bytes());
}

size_t folio_usable_size(const void* object) {
  Extent extent;
  return object != nullptr && find_extent(object, "folio_usable_size", &extent) ? extent.usable_bytes : 0;
}

bool folio_is_ours(const void* address) { return chunk_code(address) != kCodeNone || huge_beyond(address) != nullptr; }

bool folio_locate(const void* address, folio_place* place) {
  const unsigned code = chunk_code(address);
  const HugeBlock* block = code == kCodeNone ? huge_beyond(address) : huge_at(address);
  if (block != nullptr) {
    if (static_cast<const char*>(address) >= block->base + block->usable_bytes) return false;
    // Relaxed: a question about a moment.
    *place = {block->base, block->usable_bytes, 0, block->state.load(order::relaxed) == kHugeLive};
    return true;
  }
  if (code == kCodeNone) return false;
  if (code == kCodeLarge) {
    const LargePlace found = large_place(address);
    if (!found.holds(address)) return false;
    *place = {found.base, found.usable, 0, true};
    return true;
  }
  if (code == kCodeGuarded) {
    const GuardPlace found = guard_place(address);
    if (found.slot == nullptr || address < found.base || address >= found.base + found.size) return false;
    *place = {found.base, found.size, 0, found.live()};
    return true;
  }
  const Place found = place_of(address);
  if (found.descriptor == nullptr || static_cast<const char*>(address) < found.base) return false;
  *place = {found.base, static_cast<size_t>(found.slot_end - found.base), code, found.taken()};
  return true;
}

bool folio_start_housekeeper(void) {
  start();
  return clock_start_housekeeper();
}

size_t folio_collect(void) { return collect_everything("folio_collect"); }

bool folio_set_limit(size_t soft, size_t hard) {
  start();
  if (soft > PTRDIFF_MAX || hard > PTRDIFF_MAX || (hard != 0 && soft > hard)) return false;
  const auto raised = [](size_t limit) { return limit != 0 && limit < kLimitLeast ? kLimitLeast : int64_t(limit); };
  ladder_set(raised(soft), raised(hard));
  return true;
}

bool folio_limit_get(folio_limit* limit) {
  if (limit->struct_size == 0) return false;
  folio_limit all{};
  all.struct_size = limit->struct_size;
  all.soft = static_cast<size_t>(limit_state.soft.get());
  all.hard = static_cast<size_t>(limit_state.hard.get());
  all.held = static_cast<size_t>(held_bytes());
  all.refused = limit_state.refused.get();
  all.level = static_cast<int>(level_now());
  __builtin_memcpy(limit, &all, copy_bytes(limit->struct_size, sizeof all));
  return true;
}

bool folio_on_pressure(int level, folio_pressure_fn* function) {
  start();
  if (!pressure_call(level, function)) return false;
  if (level == FOLIO_LEVEL_CALM || clock_start_housekeeper()) return true;
  pressure_call(FOLIO_LEVEL_CALM, function);
  return false;
}

bool folio_profile_start(size_t interval) {
  constexpr size_t kIntervalMost = size_t{1} << 40;
  start();
  if (interval < 1 || interval > kIntervalMost || !seam_close(interval)) return false;
  options.profile = static_cast<int64_t>(interval);
  return true;
}

bool folio_profile_stop(void) {
  start();
  if (!seam_open()) return false;
  options.profile = 0;
  return true;
}

void folio_profile_write(folio_write_fn* write, void* context) {
  start();
  profile_write(seam_setting.interval.get(), write, context);
}

bool folio_stats_get(folio_stats* stats) {
  if (stats->struct_size == 0) return false;
  const Totals t = totals();
  folio_stats all;
  all.struct_size = stats->struct_size;
  all.live = t.live;
  all.cached = t.cached;
  all.fragmented = t.fragmented;
  all.dirty = t.dirty;
  all.resident = t.resident;
  all.huge_live = t.huge_live;
  all.metadata = t.metadata;
  all.reserved = t.reserved;
  all.chunks = t.chunks;
  all.threads = t.threads;
  all.purged = t.purged;
  all.purge_calls = t.purge_calls;
  all.busy_sections = t.busy_sections;
  __builtin_memcpy(stats, &all, copy_bytes(stats->struct_size, sizeof all));
  return true;
}

void folio_stats_text(folio_write_fn* write, void* context) { write_text(write, context); }
void folio_stats_json(folio_write_fn* write, void* context) { write_json(write, context); }

const char* folio_version(void) {
  return FOLIO_TEXT(FOLIO_VERSION_MAJOR) "." FOLIO_TEXT(FOLIO_VERSION_MINOR) "." FOLIO_TEXT(FOLIO_VERSION_PATCH);
}

bool folio_option_get(const char* name, int64_t* value) {
  start();
  const OptionRow* row = find_option(name, __builtin_strlen(name));
  if (row == nullptr) return false;
  *value = options.*row->field;
  return true;
}

bool folio_option_set(const char* name, int64_t value) {
  start();
  const OptionRow* row = find_option(name, __builtin_strlen(name));
  if (row == nullptr || !set_option(*row, value)) return false;
  housekeeper_call();  // it may sleep for as long as the value before said
  return true;
}

}  // extern "C"
