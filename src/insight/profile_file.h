// The heap profile outside the process: in a file in which the samples (samples.h) lie while they are made, so that it
// is there however the process ends; or as it is at a moment, written by the program. Both are read alike:
//
//   in the file that it lies in    ProfileHeader | lines of /proc/self/maps, twice | tables of samples
//   as the program writes it       ProfileHeader | each table, and its marks once more | lines of /proc/self/maps
//
// Of the two copies of the lines one can be read while the other is written. A sample whose first mark differs from its
// second one changed while the profile was written.
//
// Who may touch it: the header's words are hints; who has the flag `copying` writes the lines.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "insight/sample_tables.h"

namespace folio {

inline constexpr char kProfileMagic[8] = {'F', 'o', 'l', 'i', 'o', 'P', 'r', 'o'};
inline constexpr uint32_t kProfileVersion = 1;

struct ProfileHeader {
  char magic[8];
  uint32_t version, header_bytes;
  uint32_t machine;                    // as the ELF files of this processor are marked (e_machine)
  uint32_t process;                    // its number, as itself sees it
  uint32_t registers;                  // of a sample, from the first on
  uint32_t sample_bytes, stack_bytes;  // of one
  uint32_t slots;                      // of the first table; each other one has twice as many as the one before
  uint32_t tables_most;
  Atomic<uint32_t> maps_which;                   // of the two: the one to read
  Hint<uint64_t> maps_offset[2], maps_bytes[2];  // bytes: all ones: up to the file's end
  Hint<uint64_t> table_offset[kSampleTables];    // 0: there is none
  uint64_t marks_offset[kSampleTables];          // 0: they do not come once more
  Hint<uint64_t> interval, made, lost;
  Hint<uint64_t> written_ms;  // when that was so, by the system's monotonic clock
};

// At start. False, and nothing is changed, if there can be no such file.
bool profile_file_open(const char* path, size_t length);

// Zero-filled memory in the file for table k of the samples. Null if there is no file, or no room on its disk.
void* profile_file_table(unsigned k, size_t bytes);
// Whether there is a file with a table: then all other tables must lie there too.
bool profile_file_has_tables();
// After a new sample: updates the header, and once a second the lines.
void profile_file_note(uint64_t interval, uint64_t now_ms);
// At exit: removes a file without samples, as the many small programs that a script starts would leave.
void profile_file_end();
// In the child of a fork: forgets the file, which is the parent's. Returns whether there was one.
bool profile_file_after_fork();

// The profile as it is now, piece by piece. `write` may allocate.
using ProfileWrite = void(void* context, const char* bytes, size_t length);
void profile_write(uint64_t interval, ProfileWrite* write, void* context);

}  // namespace folio
