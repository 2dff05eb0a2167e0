// What is said of a misused address in a bin's chunk: one line each (os/report.h).
#pragma once

#include "store/occupancy.h"

namespace folio {

void report_double_free(const char* function, const void* object, BinId bin);
void report_not_start(const char* function, const void* address, const Place& place, BinId bin);

}  // namespace folio
