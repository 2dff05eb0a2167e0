// Reports of misused addresses, one line each (os/report.h). Those of guarded objects are in insight/guards_report.cc.
#pragma once

#include "space/huge.h"
#include "store/occupancy.h"

namespace folio {

void report_double_free(const char* function, const void* object, BinId bin);
// An address in a bin's chunk that is no object's start.
void report_not_start(const char* function, const void* address, const Place& place, BinId bin);
void report_large(const char* function, const void* object);
// A large object that a cache holds is live, or is in no cache any more.
void report_large_twice(const void* object);
void report_huge(const char* function, const void* object, const HugeBlock& block);
// An address that the chunk table does not know; it may be deep inside a huge object.
void report_foreign(const char* function, const void* address);
// `code`: of the object in the chunk table; its bin, if it has one.
void report_wrong_size(const char* function, const void* object, size_t size, size_t usable, unsigned code);

}  // namespace folio
