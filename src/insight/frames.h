// The calls that lead to a place of the program: addresses of code, innermost first, without symbols. They are found by
// the tables that compilers write for exceptions (.eh_frame, DWARF 5 section 6.4), so also in code without frame
// pointers. In any context: no allocation, no lock, and of the stack nothing is read that is not there.
//
// It ends early in code without such tables, and where these use expressions (a handler of a signal). There is nothing
// to see where the libc does not tell which file an address is of (os::find_module).
#pragma once

#include "os/faults.h"

namespace folio {

inline constexpr unsigned kFramesMost = 16;
struct Frames {
  const void* at[kFramesMost];  // null behind the last
};

// Of the caller, without the calls inside this library where that is a shared one.
FOLIO_NOINLINE void take_frames(Frames& frames);
// From the registers of an instruction on, which is the first.
void frames_from(os::Registers registers, Frames& frames);

}  // namespace folio
