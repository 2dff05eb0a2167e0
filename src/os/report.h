// How a report is made and written: lines on standard error, then what the option "errors" says. The texts are in
// store/misuse.cc and insight/guards_report.cc. Async-signal-safe, allocates nothing.
#pragma once

#include <stddef.h>

#include "base/text.h"

namespace folio {

// Opens a line "folio: FUNCTION(ADDRESS): ".
Text misuse_line(const char* function, const void* address);

// Ends the line with where to read more, writes it and aborts, or returns if `errors` says so.
void report_misuse(Text& line, const char* anchor);

// The two halves of it, for reports of more than one line, and `write_line` for those between them. False if nothing
// is to be said.
bool write_misuse(Text& line, const char* anchor);
void end_misuse();

// Ends the line, writes it and makes the text empty.
void write_line(Text& line);

}  // namespace folio
