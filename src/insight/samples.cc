// Keeps samples: claims a slot, copies the stack.
#include "insight/samples.h"

#include "insight/profile_file.h"
#include "os/os.h"
#include "space/metadata.h"
#include "space/room.h"

namespace folio {

namespace {

constinit Atomic<bool> making{false};

unsigned first_slot(const void* object, unsigned k) {
  const auto hash = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(object) >> 6) * 0x9e3779b97f4a7c15u;
  return static_cast<unsigned>(hash >> 32) % (sample_slots(k) / kSampleWays) * kSampleWays;
}

// False if another thread is at it, or there is no memory.
bool make_table(unsigned k) {
  // [sample-table] acquire: sees the table that the maker before has made; pairs with the store below. unseen: as there
  if (making.exchange(true, order::acquire)) return false;
  bool made = sample_table(k) != nullptr;
  if (!made) {
    // Once there is a file all of it lies there: what has no room on its disk is lost, and counted.
    const size_t bytes = sample_table_bytes(k);
    void* memory = profile_file_table(k, bytes);
    if (memory == nullptr && !profile_file_has_tables() && has_room(bytes)) {
      memory = metadata_alloc(bytes, os::page_bytes());
    }
    // [sample-table] release: after its zeros; pairs with sample_table. unseen: as there
    sample_tables[k].store(static_cast<Sample*>(memory), order::release);
    made = memory != nullptr;
  }
  making.store(false, order::release);  // [sample-table] release: pairs with the exchange. unseen: as there
  return made;
}

uint64_t hint_of(const void* object) { return reinterpret_cast<uintptr_t>(object) << 2 | kSampleLive; }

struct Slot {
  Sample* sample = nullptr;
  Hint<uint64_t>* hint = nullptr;
  uint64_t mark = 0;
  char* stack = nullptr;
};

// The one written first, of all that may be; null if none may.
Slot oldest(const void* object, unsigned tables) {
  Slot found;
  for (unsigned k = 0; k < tables; ++k) {
    Sample* const samples = sample_table(k);
    Hint<uint64_t>* const hints = sample_hints(samples, k);
    const unsigned first = first_slot(object, k);
    for (unsigned slot = first; slot < first + kSampleWays; ++slot) {
      const uint64_t mark = hints[slot].get();  // the claim checks it
      if ((mark & 3) != kSampleEmpty && (mark & 3) != kSampleFreed) continue;
      if (found.sample == nullptr || mark < found.mark) {
        found = {&samples[slot], &hints[slot], mark, sample_stack(samples, sample_slots(k), slot)};
      }
    }
  }
  return found;
}

Slot claim(const void* object, uint64_t number, uint64_t now_ms) {
  constexpr uint64_t kYoungMs = 1000;
  for (;;) {
    unsigned tables = 0;
    while (tables < kSampleTables && sample_table(tables) != nullptr) ++tables;
    const Slot slot = oldest(object, tables);
    // All tables so far have kSampleSlots slots less than the next one.
    const bool for_readers = slot.sample != nullptr && (slot.mark & 3) == kSampleFreed &&
                             now_ms - slot.sample->written_ms.get() < kYoungMs &&
                             2 * sample_slots(tables) - kSampleSlots <= kSlotsForReaders && !room_is_limited();
    if ((slot.sample == nullptr || for_readers) && tables < kSampleTables && make_table(tables)) continue;
    if (slot.sample == nullptr) return slot;
    uint64_t expected = slot.mark;
    // [sample] acquire: what was written there comes before what is written now; pairs with end_in_set. unseen: readers
    // are other processes
    const bool claimed = slot.sample->mark.compare_exchange(expected, number << 2 | kSampleWriting, order::acquire);
    const bool free = !claimed && ((expected & 3) == kSampleEmpty || (expected & 3) == kSampleFreed);
    // Not if the slot's owner has changed the hint since: else the hint would say for good that the slot is being
    // written.
    uint64_t stale = slot.mark;
    slot.hint->replace(stale, free ? expected : uint64_t{kSampleWriting});
    if (claimed) return slot;
  }
}

// What lies on the stack from `from` on, up to the end of what is mapped. Behind the page in use the stack may end, and
// what follows may be unmapped by other threads at any moment: so the system copies.
uint32_t copy_by_system(char* to, const char* from) {
  const size_t page = os::page_bytes();
  os::PeekRange ranges[os::kPeekMost];
  unsigned count = 0;
  for (size_t done = 0; done < kSampleStackBytes && count < os::kPeekMost; ++count) {
    const size_t in_page = page - reinterpret_cast<uintptr_t>(from + done) % page;
    const size_t bytes = in_page < kSampleStackBytes - done ? in_page : kSampleStackBytes - done;
    ranges[count] = {to + done, from + done, bytes};
    done += bytes;
  }
  const unsigned good = os::peek_some(ranges, count);
  size_t copied = 0;
  for (unsigned i = 0; i < good; ++i) copied += ranges[i].bytes;
  return static_cast<uint32_t>(copied);
}

// As far as the stack's end is known; asks whether a page is there by a call that every filter allows.
uint32_t copy_carefully(char* to, const char* from) {
  const size_t page = os::page_bytes();
  const auto start = reinterpret_cast<uintptr_t>(from);
  const uintptr_t whole = os::stack_end(from) - start;
  const size_t most = whole < kSampleStackBytes ? whole : kSampleStackBytes;
  size_t done = page - start % page;
  if (done > most) done = most;
  os::copy_unchecked(to, from, done);
  while (done < most) {
    const size_t bytes = page < most - done ? page : most - done;
    if (bytes < sizeof(uint64_t) || os::copy_if_mapped(to + done, from + done, bytes) != os::Answer::kYes) break;
    done += bytes;
  }
  return static_cast<uint32_t>(done);
}

// Not inlined: its frame has to last while it is copied.
FOLIO_NOINLINE void take_stack(Sample& sample, char* to, bool carefully) {
  const char* const from = arch::get_registers(sample.registers);
  const uint32_t copied = carefully ? 0 : copy_by_system(to, from);
  sample.stack_bytes = copied != 0 ? copied : copy_carefully(to, from);
}

}  // namespace

void sample_object(const void* object, size_t size, uint64_t interval, bool carefully) {
  const uint64_t number = sample_counts.made.add(1) + 1, now_ms = os::now_ms();
  const Slot slot = claim(object, number, now_ms);
  if (slot.sample == nullptr) {
    sample_counts.lost.add(1);
    return;
  }
  Sample& sample = *slot.sample;
  sample.object.set(object);
  sample.written_ms.set(now_ms);
  sample.freed_ms.set(0);
  sample.size = size;
  sample.interval = interval;
  sample.thread = os::thread_id();
  take_stack(sample, slot.stack, carefully);
  // [sample] release: a reader that finds it live finds all of it. unseen: readers are other processes
  sample.mark.store(number << 2 | kSampleLive, order::release);
  slot.hint->set(hint_of(object));
  profile_file_note(interval, now_ms);
}

namespace {

// By the hints, or by the samples themselves.
template <bool kByHints>
bool end_in_set(const void* object, unsigned k) {
  Sample* const samples = sample_table(k);
  Hint<uint64_t>* const hints = sample_hints(samples, k);
  const unsigned first = first_slot(object, k);
  for (unsigned slot = first; slot < first + kSampleWays; ++slot) {
    if (kByHints && hints[slot].get() != hint_of(object)) continue;
    Sample& sample = samples[slot];
    const uint64_t mark = sample.mark.load(order::relaxed);  // relaxed: the caller owns the object, and so its sample
    if ((mark & 3) != kSampleLive || sample.object.get() != object) continue;
    sample.freed_ms.set(os::now_ms());
    // [sample] release: a reader that finds it freed finds when. unseen: as above
    sample.mark.store(mark | kSampleFreed, order::release);
    hints[slot].set(mark | kSampleFreed);
    return true;
  }
  return false;
}

}  // namespace

void sample_end(const void* object) {
  unsigned tables = 0;
  while (tables < kSampleTables && sample_table(tables) != nullptr) ++tables;
  for (unsigned k = 0; k < tables; ++k) {
    if (end_in_set<true>(object, k)) return;
  }
  // It has no sample, or a hint was lost.
  for (unsigned k = 0; k < tables; ++k) {
    if (end_in_set<false>(object, k)) return;
  }
}

void samples_after_fork() {
  making.store(false, order::relaxed);  // relaxed: the child has one thread
  if (!profile_file_after_fork()) return;
  for (auto& table : sample_tables) table.store(nullptr, order::relaxed);  // relaxed: as above
}

}  // namespace folio
