// Runs a program some of whose system calls fail. The kernel asks this process about each of the named calls (a seccomp
// filter with a listener), so that the program, the libc and Folio need no change and no knowledge of it.
//
// Called by inject.cc. Never allocates while it supervises anything but the program's own descriptors.
#pragma once

#include <climits>
#include <string>
#include <vector>

namespace fault {

// A call that the program makes to say "from here on" (1) or "no longer" (0): prctl(kMarkPrctl, on). Without a
// supervisor it fails, harmlessly.
constexpr unsigned kMarkPrctl = 0x666f6c69;

struct Plan {
  std::vector<int> calls;                // numbers of the system calls
  int error = 0;                         // what they fail with
  unsigned first = UINT_MAX;             // the first of them that fails, from 1
  unsigned count = 1;                    // how many fail
  bool spare_loader = false;             // not the calls of ld.so, nor an mmap of a file
  bool wait_for_mark = true;             // counts only between the program's marks
  std::vector<std::string> environment;  // beside our own, NAME=VALUE
};

struct Outcome {
  bool possible = true;     // false: this system allows no such filter
  bool timed_out = false;   // the program was killed because it did not end
  int status = 0;           // as waitpid has it
  unsigned calls_seen = 0;  // of those that count
  unsigned failed = 0;
};

// Runs the program to its end, or to `seconds`.
Outcome run(const std::vector<std::string> &command, const Plan &plan, unsigned seconds);

}  // namespace fault
