#pragma once

#include <folio/folio.h>

#include "arch/x86_64.h"
#include "cache/none.h"
#include "magazine.h"

#if defined(FOLIO_SPEED)
inline int capacity() { return 62; }
#endif
// #include "diag/statistics.h" is a comment, and "#include" in a literal is none.
inline const char* text() { return "#if __linux__"; }
