// The texts of reports of misuse, except those of guarded objects.
#include "store/misuse.h"

#include "os/report.h"
#include "space/large.h"

namespace folio {

namespace {

constexpr const char* kDoubleFree = "double-free";
constexpr const char* kInvalidFree = "invalid-free";

Text& put_bin(Text& line, BinId bin) {
  return line << static_cast<uint64_t>(info_of(bin).size) << "-byte object (bin " << static_cast<uint64_t>(index(bin))
              << ")";
}

void report_damaged(Text& line, const void* address) {
  line << "descriptor of chunk " << static_cast<const void*>(chunk_start(address)) << " is damaged";
  report_misuse(line, "damaged-descriptor");
}

// `kind`: large or huge.
void report_inside(Text& line, const char* kind, size_t usable, const char* base) {
  line << "not the start of an object: inside a " << kind << " object of " << static_cast<uint64_t>(usable)
       << " bytes at " << static_cast<const void*>(base);
  report_misuse(line, kInvalidFree);
}

}  // namespace

void report_double_free(const char* function, const void* object, BinId bin) {
  Text line = misuse_line(function, object);
  line << "double free of a ";
  put_bin(line, bin);
  report_misuse(line, kDoubleFree);
}

void report_not_start(const char* function, const void* address, const Place& place, BinId bin) {
  // Its entry in the chunk table is that of an address 16 TiB away.
  if (chunk_code(address) == kCodeNone) return report_foreign(function, address);
  Text line = misuse_line(function, address);
  if (place.damaged) return report_damaged(line, address);
  line << "not the start of an object: ";
  if (place.descriptor == nullptr) {
    line << "in an unused part of a chunk (bin " << static_cast<uint64_t>(index(bin)) << ")";
  } else {
    line << "inside a ";
    put_bin(line, bin) << " at " << static_cast<const void*>(place.base);
  }
  report_misuse(line, kInvalidFree);
}

void report_large(const char* function, const void* object) {
  const LargePlace place = large_place(object);
  Text line = misuse_line(function, object);
  if (place.field == nullptr) return report_damaged(line, object);
  if (place.holds_or_keeps_spare(object)) return report_inside(line, "large", place.usable, place.base);
  line << "no large object is there: freed before, or never returned";
  report_misuse(line, kDoubleFree);
}

void report_large_twice(const void* object) {
  Text line = misuse_line("free", object);
  line << "a large object was freed by two threads at once";
  report_misuse(line, kDoubleFree);
}

void report_huge(const char* function, const void* object, const HugeBlock& block) {
  Text line = misuse_line(function, object);
  if (object != block.base) return report_inside(line, "huge", block.usable_bytes, block.base);
  line << "double free of a huge object";
  report_misuse(line, kDoubleFree);
}

void report_foreign(const char* function, const void* address) {
  if (const HugeBlock* block = huge_beyond(address)) return report_huge(function, address, *block);
  Text line = misuse_line(function, address);
  line << "not an address of Folio's";
  report_misuse(line, "foreign-pointer");
}

void report_wrong_size(const char* function, const void* object, size_t size, size_t usable, unsigned code) {
  Text line = misuse_line(function, object);
  line << "size " << static_cast<uint64_t>(size) << " given, but the object has " << static_cast<uint64_t>(usable)
       << " usable bytes";
  if (code < kBins) line << " (bin " << static_cast<uint64_t>(code) << ")";
  report_misuse(line, "wrong-size");
}

}  // namespace folio
