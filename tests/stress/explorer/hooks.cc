// What the code under test calls: each atomic operation, and, from -fsanitize=thread, each plain access. The
// sanitizer's own library is not linked.
#include "os/os.h"
#include "os/report.h"
#include "stress/explorer/explorer.h"

using explorer::Machine;

#define WHERE __builtin_return_address(0)

extern "C" {

bool folio_exploring = false;

uint64_t folio_explore(void* word, const folio::ExploredOp* op) { return Machine::operation(word, *op); }
void folio_explore_result() { Machine::result_is_read(); }

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void __tsan_read1(void* p) { Machine::access(p, 1, false, WHERE); }
void __tsan_read2(void* p) { Machine::access(p, 2, false, WHERE); }
void __tsan_read4(void* p) { Machine::access(p, 4, false, WHERE); }
void __tsan_read8(void* p) { Machine::access(p, 8, false, WHERE); }
void __tsan_read16(void* p) { Machine::access(p, 16, false, WHERE); }
void __tsan_write1(void* p) { Machine::access(p, 1, true, WHERE); }
void __tsan_write2(void* p) { Machine::access(p, 2, true, WHERE); }
void __tsan_write4(void* p) { Machine::access(p, 4, true, WHERE); }
void __tsan_write8(void* p) { Machine::access(p, 8, true, WHERE); }
void __tsan_write16(void* p) { Machine::access(p, 16, true, WHERE); }
void __tsan_unaligned_read2(void* p) { Machine::access(p, 2, false, WHERE); }
void __tsan_unaligned_read4(void* p) { Machine::access(p, 4, false, WHERE); }
void __tsan_unaligned_read8(void* p) { Machine::access(p, 8, false, WHERE); }
void __tsan_unaligned_read16(void* p) { Machine::access(p, 16, false, WHERE); }
void __tsan_unaligned_write2(void* p) { Machine::access(p, 2, true, WHERE); }
void __tsan_unaligned_write4(void* p) { Machine::access(p, 4, true, WHERE); }
void __tsan_unaligned_write8(void* p) { Machine::access(p, 8, true, WHERE); }
void __tsan_unaligned_write16(void* p) { Machine::access(p, 16, true, WHERE); }
void __tsan_read_range(void* p, size_t n) { Machine::access(p, n, false, WHERE); }
void __tsan_write_range(void* p, size_t n) { Machine::access(p, n, true, WHERE); }
void __tsan_vptr_read(void* p) { Machine::access(p, sizeof p, false, WHERE); }
void __tsan_vptr_update(void** p, void*) { Machine::access(p, sizeof p, true, WHERE); }

// The compiler tells nothing of these.
void* __real_memcpy(void* to, const void* from, size_t bytes);
void* __real_memset(void* to, int value, size_t bytes);
void* __real__ZN5folio2os7reserveEmmNS0_9HugePagesE(size_t bytes, size_t alignment, folio::os::HugePages pages);
bool __real__ZN5folio2os9unreserveEPvm(void* start, size_t bytes);
bool __real__ZN5folio2os5purgeEPvm(void* start, size_t bytes);
bool __real__ZN5folio2os6commitEPvm(void* start, size_t bytes);

void* __wrap_memcpy(void* to, const void* from, size_t bytes) {
  Machine::access(from, bytes, false, WHERE);
  Machine::access(to, bytes, true, WHERE);
  return __real_memcpy(to, from, bytes);
}
void* __wrap_memset(void* to, int value, size_t bytes) {
  Machine::access(to, bytes, true, WHERE);
  return __real_memset(to, value, bytes);
}
void* __wrap__ZN5folio2os7reserveEmmNS0_9HugePagesE(size_t bytes, size_t alignment, folio::os::HugePages pages) {
  if (explorer::no_address_space) return nullptr;
  void* const arena = Machine::reserve(bytes, alignment);
  return arena != nullptr ? arena : __real__ZN5folio2os7reserveEmmNS0_9HugePagesE(bytes, alignment, pages);
}
bool __wrap__ZN5folio2os9unreserveEPvm(void* start, size_t bytes) {
  if (explorer::keeps_address_space) return true;
  if (Machine::unmap(start, bytes)) return true;
  return __real__ZN5folio2os9unreserveEPvm(start, bytes);
}
bool __wrap__ZN5folio2os5purgeEPvm(void* start, size_t bytes) {
  Machine::purge(start, bytes, WHERE);
  return __real__ZN5folio2os5purgeEPvm(start, bytes);
}

bool __wrap__ZN5folio2os6commitEPvm(void* start, size_t bytes) {
  Machine::commit(start, bytes);
  return __real__ZN5folio2os6commitEPvm(start, bytes);
}

unsigned __real__ZN5folio2os9peek_someEPKNS0_9PeekRangeEj(const folio::os::PeekRange* ranges, unsigned count);
unsigned __wrap__ZN5folio2os9peek_someEPKNS0_9PeekRangeEj(const folio::os::PeekRange* ranges, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    bool mapped = false;
    if (!Machine::copy_storage(ranges[i].to, ranges[i].from, ranges[i].bytes, &mapped)) {
      mapped = __real__ZN5folio2os9peek_someEPKNS0_9PeekRangeEj(&ranges[i], 1) == 1;
    }
    if (!mapped) return i;
  }
  return count;
}
folio::os::Answer __real__ZN5folio2os7word_isEPKPKvS2_(const void* const* word, const void* value);
folio::os::Answer __wrap__ZN5folio2os7word_isEPKPKvS2_(const void* const* word, const void* value) {
  const void* found = nullptr;
  bool mapped = false;
  if (!Machine::copy_storage(&found, word, sizeof found, &mapped)) {
    return __real__ZN5folio2os7word_isEPKPKvS2_(word, value);
  }
  if (!mapped) return folio::os::Answer::kNotThere;
  return found == value ? folio::os::Answer::kYes : folio::os::Answer::kOther;
}
folio::os::Answer __real__ZN5folio2os14copy_if_mappedEPvPKvm(void* to, const void* from, size_t bytes);
folio::os::Answer __wrap__ZN5folio2os14copy_if_mappedEPvPKvm(void* to, const void* from, size_t bytes) {
  bool mapped = false;
  if (!Machine::copy_storage(to, from, bytes, &mapped)) {
    return __real__ZN5folio2os14copy_if_mappedEPvPKvm(to, from, bytes);
  }
  return mapped ? folio::os::Answer::kYes : folio::os::Answer::kNotThere;
}
uint32_t __real__ZN5folio2os9thread_idEv();
uint32_t __wrap__ZN5folio2os9thread_idEv() {
  uint32_t id = 0;
  return Machine::thread_id(&id) ? id : __real__ZN5folio2os9thread_idEv();
}
bool __real__ZN5folio2os13thread_existsEj(uint32_t id);
bool __wrap__ZN5folio2os13thread_existsEj(uint32_t id) {
  bool exists = false;
  return Machine::thread_exists(id, &exists) ? exists : __real__ZN5folio2os13thread_existsEj(id);
}

void __real__ZN5folio13report_misuseERNS_4TextEPKc(folio::Text& line, const char* anchor);
void __wrap__ZN5folio13report_misuseERNS_4TextEPKc(folio::Text& line, const char* anchor) {
  ++explorer::misuses;
  __real__ZN5folio13report_misuseERNS_4TextEPKc(line, anchor);
}

// It comes whole, at once.
bool __real__ZN5folio2os8collapseEPvm(void* start, size_t bytes);
bool __wrap__ZN5folio2os8collapseEPvm(void* start, size_t bytes) {
  return Machine::explores() || __real__ZN5folio2os8collapseEPvm(start, bytes);
}
bool __real__ZN5folio2os15huge_pages_comeEv();
bool __wrap__ZN5folio2os15huge_pages_comeEv() {
  return Machine::explores() || __real__ZN5folio2os15huge_pages_comeEv();
}
// An execution takes no time.
uint64_t __real__ZN5folio2os6now_msEv();
uint64_t __wrap__ZN5folio2os6now_msEv() { return Machine::explores() ? 0 : __real__ZN5folio2os6now_msEv(); }

uint64_t __real__ZN5folio2os6cpu_usEv();
uint64_t __wrap__ZN5folio2os6cpu_usEv() { return Machine::explores() ? 0 : __real__ZN5folio2os6cpu_usEv(); }

// The guards of variables that a test initializes once: on x86-64, on aarch64.
char __tsan_atomic8_load(const volatile char* p, int) { return *p; }
long __tsan_atomic64_load(const volatile long* p, int) { return *p; }

}  // extern "C"
