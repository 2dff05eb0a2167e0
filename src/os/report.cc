// Begins, writes and ends a report of misuse.
#include "os/report.h"

#include "config/options.h"
#include "os/os.h"

namespace folio {

Text misuse_line(const char* function, const void* address) {
  Text line;
  line << "folio: " << function << "(" << address << "): ";
  return line;
}

bool write_misuse(Text& line, const char* anchor) {
  if (options.errors == kErrorsIgnore) return false;
  line << " (see docs/errors.md#" << anchor << ")";
  write_line(line);
  return true;
}

void end_misuse() {
  if (options.errors == kErrorsAbort) os::abort_process();
}

void report_misuse(Text& line, const char* anchor) {
  if (write_misuse(line, anchor)) end_misuse();
}

void write_line(Text& line) {
  line << "\n";
  os::write_error(line.data(), line.length());
  line.clear();
}

}  // namespace folio
