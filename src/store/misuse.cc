// The texts of reports about objects of bins.
#include "store/misuse.h"

#include "os/report.h"

namespace folio {

namespace {

Text& put_bin(Text& line, BinId bin) {
  return line << static_cast<uint64_t>(info_of(bin).size) << "-byte object (bin " << static_cast<uint64_t>(index(bin))
              << ")";
}

}  // namespace

void report_double_free(const char* function, const void* object, BinId bin) {
  Text line = misuse_line(function, object);
  line << "double free of a ";
  put_bin(line, bin);
  report_misuse(line, "double-free");
}

void report_not_start(const char* function, const void* address, const Place& place, BinId bin) {
  Text line = misuse_line(function, address);
  if (place.damaged) {
    line << "descriptor of chunk " << static_cast<const void*>(chunk_start(address)) << " is damaged";
    return report_misuse(line, "damaged-descriptor");
  }
  line << "not the start of an object: ";
  if (place.descriptor == nullptr) {
    line << "in an unused part of a chunk (bin " << static_cast<uint64_t>(index(bin)) << ")";
  } else {
    line << "inside a ";
    put_bin(line, bin) << " at " << static_cast<const void*>(place.base);
  }
  report_misuse(line, "invalid-free");
}

}  // namespace folio
