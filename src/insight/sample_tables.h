// Where samples (samples.h) lie:
//
//   table k:   Sample[n] | stack[n] | hint[n]    n = 256 << k; made when it is needed, in metadata or in the profile's
//                                                file
//
// A hint says what a slot holds: its mark if it is empty or free, its object if that is live, else kSampleWriting. It
// may be stale. The hints of a set lie side by side, so that a search does not touch a line for each sample, which took
// 3 of 5 us a sample.
//
// Readers are other processes, too (docs/layout.md, "Samples").
//
// Who may touch a slot: the thread that has claimed it (kSampleWriting); from kSampleLive on the thread that frees the
// object. A thread that ends in between leaves the slot claimed.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "arch/arch.h"
#include "base/atomic.h"
#include "sync/relaxed.h"

namespace folio {

// Slots in a set, for objects that come and go at one address: with 8, MariaDB sampled at 64 KiB lost 15 % of its
// samples before a reader had them.
inline constexpr unsigned kSampleWays = 16;
inline constexpr unsigned kSampleSlots = 256;  // of the first table
inline constexpr unsigned kSampleTables = 12;  // half a million slots, of 200 GiB live at one sample in 512 KiB
inline constexpr size_t kSampleStackBytes = 8192;
// For what was freed lately, all tables together: 30 MiB of stacks. None where there is a limit, since all of a table
// counts as held.
inline constexpr unsigned kSlotsForReaders = 3840;

enum SamplePhase : uint64_t { kSampleEmpty = 0, kSampleWriting, kSampleLive, kSampleFreed };

struct alignas(64) Sample {
  Atomic<uint64_t> mark;  // number, from 1 on in the order of allocation << 2 | phase
  Hint<const void*> object;
  Hint<uint64_t> written_ms, freed_ms;  // of the system's monotonic clock
  uint64_t size;                        // as requested
  uint64_t interval;                    // the mean bytes from one chosen object to the next, then
  uint32_t thread;                      // as the system numbers it
  uint32_t stack_bytes;
  uint64_t registers[14];  // arch::get_registers
};
static_assert(arch::kRegisters <= sizeof(Sample::registers) / sizeof(uint64_t));

extern Atomic<Sample*> sample_tables[kSampleTables];

struct SampleCounts {
  Counter<uint64_t> made;  // the number of the last one
  Counter<uint64_t> lost;  // of these: had no slot
};
extern SampleCounts sample_counts;

inline constexpr unsigned sample_slots(unsigned table) { return kSampleSlots << table; }
// Of the samples and stacks of a table, and with the hints.
inline constexpr size_t sample_data_bytes(unsigned table) {
  return sample_slots(table) * (sizeof(Sample) + kSampleStackBytes);
}
inline constexpr size_t sample_table_bytes(unsigned table) {
  return sample_data_bytes(table) + sample_slots(table) * sizeof(uint64_t);
}
Sample* sample_table(unsigned table);  // null if it was not made yet
inline char* sample_stack(Sample* table, unsigned slots, unsigned slot) {
  return reinterpret_cast<char*>(table + slots) + slot * kSampleStackBytes;
}
inline Hint<uint64_t>* sample_hints(Sample* of, unsigned table) {
  return reinterpret_cast<Hint<uint64_t>*>(reinterpret_cast<char*>(of) + sample_data_bytes(table));
}

}  // namespace folio
