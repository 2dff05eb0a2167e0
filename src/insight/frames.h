// The calls that lead to a place of the program: addresses of code, innermost first, without symbols. They are found by
// the tables that compilers write for exceptions (.eh_frame, DWARF 5 section 6.4), so also in code without frame
// pointers. In any context: no allocation, no lock, and of the stack nothing is read that is not there.
//
// A list of frames ends early at code without such tables, and where these use expressions (a signal's handler). It is
// empty where the libc does not say which file an address belongs to (os::find_module).
#pragma once

#include "os/faults.h"

namespace folio {

inline constexpr unsigned kFramesMost = 16;
struct Frames {
  const void* at[kFramesMost];  // null behind the last
};

// The frames of the caller, without the calls inside this library if it is a shared one.
FOLIO_NOINLINE void take_frames(Frames& frames);
// The frames from the registers of an instruction on; the instruction's address is the first.
void frames_from(os::Registers registers, Frames& frames);

}  // namespace folio
